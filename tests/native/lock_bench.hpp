// Three ways to guard a heap, measured against each other: the flag lock, the flag lock with a bounded hand-over ring
// for producers that find it taken, and std::mutex. lock.hpp says what came out; the ring was not kept and lives here.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lock.hpp"

struct Ops {  // a heap, and what is done to it
  void* heap;
  void (*push)(void*, int64_t, int32_t);
  int32_t (*pop)(void*);

  int pop_many(int32_t* out, int n) const {
    int taken = 0;
    while (taken < n && (out[taken] = pop(heap)) >= 0) ++taken;
    return taken;
  }
};

template <class Lock>
struct Locked {
  Ops ops;
  Lock lock;

  explicit Locked(const Ops& o) : ops(o) {}
  void push(int64_t key, int32_t slot) {
    std::lock_guard<Lock> held(lock);
    ops.push(ops.heap, key, slot);
  }
  int pop_many(int32_t* out, int n) {
    std::lock_guard<Lock> held(lock);
    return ops.pop_many(out, n);
  }
};

// Many producers, one consumer at a time: who holds the lock. A cell's turn says whose it is: `at` to be filled by the
// producer that takes position `at`, `at + 1` to be read, `at + N` free for the next round. A producer that stalls
// between taking a position and filling it holds up what was pushed after it, not the producers.
struct Ring {
  struct Entry { int64_t key; int32_t slot; };
  struct alignas(64) Cell { std::atomic<uint64_t> turn; Entry entry; };
  static constexpr uint64_t N = 1024;
  static_assert((N & (N - 1)) == 0, "positions wrap by masking");

  Cell cells[N];
  alignas(64) std::atomic<uint64_t> tail{0};
  alignas(64) uint64_t head = 0;  // under the lock

  Ring() {
    for (uint64_t i = 0; i < N; ++i) cells[i].turn.store(i, std::memory_order_relaxed);
  }
  bool try_push(const Entry& entry) {
    uint64_t at = tail.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells[at & (N - 1)];
      const uint64_t turn = cell.turn.load(std::memory_order_acquire);  // pairs with the release in pop
      if (turn == at) {
        if (!tail.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) continue;
        cell.entry = entry;
        cell.turn.store(at + 1, std::memory_order_release);  // pairs with the acquire in pop
        return true;
      }
      if (turn < at) return false;  // full
      at = tail.load(std::memory_order_relaxed);
    }
  }
  bool pop(Entry* entry) {
    Cell& cell = cells[head & (N - 1)];
    if (cell.turn.load(std::memory_order_acquire) != head + 1) return false;
    *entry = cell.entry;
    cell.turn.store(head + N, std::memory_order_release);
    ++head;
    return true;
  }
};

struct WithRing {
  Ops ops;
  relay::FlagLock lock;
  Ring ring;
  alignas(64) std::atomic<int64_t> handed{0};  // entries in the ring, or about to be

  explicit WithRing(const Ops& o) : ops(o) {}
  void drain() {
    Ring::Entry entry;
    int64_t n = 0;
    for (; ring.pop(&entry); ++n) ops.push(ops.heap, entry.key, entry.slot);
    if (n) handed.fetch_sub(n, std::memory_order_relaxed);
  }
  // A producer fills the ring and then looks at the lock; who unlocks then looks at the ring. One sees the other.
  void unlock() {
    do {
      lock.unlock();
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (handed.load(std::memory_order_relaxed) == 0 || !lock.try_lock()) return;
      drain();
    } while (true);
  }
  void push(int64_t key, int32_t slot) {
    if (!lock.try_lock()) {
      handed.fetch_add(1, std::memory_order_relaxed);
      if (ring.try_push({key, slot})) {
        std::atomic_thread_fence(std::memory_order_seq_cst);
        if (lock.try_lock()) {
          drain();
          unlock();
        }
        return;
      }
      handed.fetch_sub(1, std::memory_order_relaxed);
      lock.lock();
    }
    drain();
    ops.push(ops.heap, key, slot);
    unlock();
  }
  int pop_many(int32_t* out, int n) {
    lock.lock();
    drain();
    const int taken = ops.pop_many(out, n);
    unlock();
    return taken;
  }
};

using Clock = std::chrono::steady_clock;

struct Latencies {  // of pushes, in eighths of powers of two
  std::vector<uint64_t> counts = std::vector<uint64_t>(64 * 8);
  uint64_t total = 0, worst = 0;

  void add(uint64_t ns) {
    const int top = ns < 8 ? 2 : 63 - __builtin_clzll(ns);
    ++counts[ns < 8 ? ns : (top - 2) * 8 + (ns >> (top - 3) & 7)];
    ++total;
    worst = std::max(worst, ns);
  }
  double at(double share) const {
    uint64_t want = static_cast<uint64_t>(share * static_cast<double>(total)), seen = 0;
    for (uint64_t i = 0; i < counts.size(); ++i) {
      seen += counts[i];
      if (seen > want) return static_cast<double>(i < 8 ? i : (8 + i % 8) << (i / 8 - 1));
    }
    return 0;
  }
};

struct Result { double per_s, p50, p99, p999, p9999, worst; };

// `hold`: every thread pushes its slot and pops another, over 1000 that stand in the heap. `lane`: the threads push,
// 128 slots each, and one more pops up to 64 at a time. Pushes are timed; what the scheduler takes meanwhile counts.
template <class Guard>
Result measure(const Ops& ops, bool lane, int threads, double seconds) {
  constexpr int kStanding = 1000, kEach = 128;
  std::unique_ptr<Guard> guard(new Guard(ops));
  std::vector<std::atomic<bool>> queued(threads * kEach);
  std::vector<Latencies> took(threads);
  std::vector<std::thread> all;
  std::atomic<bool> go{false}, stop{false};
  std::atomic<uint64_t> popped{0};
  for (int slot = 0; slot < kStanding && !lane; ++slot) guard->push(slot * 7919 % 1000 * (1 << 20), threads + slot);
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      uint64_t random = 88172645463325252u + 7919 * t, done = 0;
      int32_t slot = lane ? t * kEach : t;
      while (!go) std::this_thread::yield();
      while (!stop.load(std::memory_order_relaxed)) {
        if (lane && queued[slot].exchange(true, std::memory_order_acquire)) {
          std::this_thread::yield();
          continue;
        }
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        const auto began = Clock::now();
        guard->push(static_cast<int64_t>(random >> 34), slot);
        took[t].add(static_cast<uint64_t>((Clock::now() - began).count()));
        ++done;
        if (lane) slot = t * kEach + (slot + 1) % kEach;
        else while (guard->pop_many(&slot, 1) == 0) std::this_thread::yield();
      }
      if (!lane) popped += done;
    });
  }
  if (lane) {
    all.emplace_back([&] {
      int32_t out[64];
      while (!go) std::this_thread::yield();
      while (!stop.load(std::memory_order_relaxed)) {
        const int n = guard->pop_many(out, 64);
        for (int i = 0; i < n; ++i) queued[out[i]].store(false, std::memory_order_release);
        popped += n;
        if (n == 0) std::this_thread::yield();
      }
    });
  }
  const auto began = Clock::now();
  go = true;
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  for (std::thread& thread : all) thread.join();
  const std::chrono::duration<double> passed = Clock::now() - began;
  Latencies sum;
  for (const Latencies& one : took) {
    for (size_t i = 0; i < sum.counts.size(); ++i) sum.counts[i] += one.counts[i];
    sum.total += one.total;
    sum.worst = std::max(sum.worst, one.worst);
  }
  for (int32_t slot; guard->pop_many(&slot, 1);) {}
  return {popped / passed.count(), sum.at(.5), sum.at(.99), sum.at(.999), sum.at(.9999), double(sum.worst)};
}

inline void show(const char* name, std::vector<Result> rounds) {
  const auto median = [&](double Result::*field) {
    std::sort(rounds.begin(), rounds.end(), [&](const Result& a, const Result& b) { return a.*field < b.*field; });
    return rounds[rounds.size() / 2].*field;
  };
  std::printf("  %-10s %5.2f M/s   push p50 %.0f, p99 %.0f, p99.9 %.0f, p99.99 %.0f ns, worst %.1f ms\n", name,
              median(&Result::per_s) / 1e6, median(&Result::p50), median(&Result::p99), median(&Result::p999),
              median(&Result::p9999), median(&Result::worst) / 1e6);
}

// Rounds of the three alternate; medians over the rounds are shown.
inline void lock_bench(const Ops& ops, int threads, double seconds, int rounds) {
  for (bool lane : {false, true}) {
    std::vector<Result> flag, ring, mutex;
    for (int i = 0; i < rounds; ++i) {
      flag.push_back(measure<Locked<relay::FlagLock>>(ops, lane, threads, seconds));
      ring.push_back(measure<WithRing>(ops, lane, threads, seconds));
      mutex.push_back(measure<Locked<std::mutex>>(ops, lane, threads, seconds));
    }
    std::printf("%s, %d threads\n", lane ? "lane" : "hold", threads);
    show("flag", flag);
    show("flag+ring", ring);
    show("std::mutex", mutex);
    std::fflush(stdout);
  }
}
