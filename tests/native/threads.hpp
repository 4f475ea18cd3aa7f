// Threads for the stress: plain C++ ones, that Python does not know of.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

// Calls work(world, 0) .. work(world, n - 1) on n threads that start together, and returns when all have.
inline void run_threads(int n, void (*work)(void*, int), void* world) {
  std::atomic<int> absent{n};
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i) {
    threads.emplace_back([&absent, work, world, i] {
      absent.fetch_sub(1);
      while (absent.load() != 0) std::this_thread::yield();
      work(world, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}
