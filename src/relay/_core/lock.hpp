// A lock for what takes tens of nanoseconds and calls no Python: one flag.
//
// Owns nothing but the flag. Any thread may take it, with or without the GIL. Who holds it must give it back without
// waiting for anything: no Python, no allocation, no user code, no second lock. It is not recursive and not fair.
#pragma once

#include <atomic>
#include <thread>

#if defined(__x86_64__) || defined(__i386__) || defined(_M_X64) || defined(_M_IX86)
#include <immintrin.h>
#endif

namespace relay {

class FlagLock {
  static constexpr int kTries = 64;  // about a microsecond: far longer than any holder runs, so the holder has lost its core

 public:
  FlagLock() = default;
  FlagLock(const FlagLock&) = delete;
  FlagLock& operator=(const FlagLock&) = delete;

  // Acquire, on success: pairs with the release in unlock, so the new holder sees all that the last one wrote. The first
  // look is relaxed: it decides nothing but whether to try, and leaves the line shared while somebody else holds it.
  bool try_lock() noexcept {
    return !taken_.load(std::memory_order_relaxed) && !taken_.exchange(true, std::memory_order_acquire);
  }

  // A holder that has lost its core cannot be waited for by spinning: after a while the core is offered to it.
  void lock() noexcept {
    for (;;) {
      for (int i = 0; i < kTries; ++i) {
        if (try_lock()) return;
        pause();
      }
      std::this_thread::yield();
    }
  }

  // Release: pairs with the acquire in try_lock.
  void unlock() noexcept { taken_.store(false, std::memory_order_release); }

 private:
  static void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__) || defined(_M_X64) || defined(_M_IX86)
    _mm_pause();
#elif defined(__aarch64__) && !defined(_MSC_VER)
    __asm__ __volatile__("yield");
#endif
  }

  std::atomic<bool> taken_{false};
};

static_assert(std::atomic<bool>::is_always_lock_free, "the flag is one atomic byte, never a hidden mutex");
static_assert(sizeof(FlagLock) == 1, "embedding it costs one byte");

}  // namespace relay
