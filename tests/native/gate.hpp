// What a waiter of the pool's stress parks at: a wait object that its waiter and its waker share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

// One reference is the waiter's; whoever is to open the gate has one more. The last to let go frees it, so that it
// outlives the waker's last touch, also where the waiter's time ends at that very moment.
class Gate {
 public:
  int place = -1;  // where it stands in line, or -1; these three: guarded by the lock of the line
  int level = 0;   // the tier that it was granted in
  bool granted = false;

  // False if the time came first. By the system's clock, whose waits every thread sanitizer knows.
  bool park(int timeout_us) {
    std::unique_lock<std::mutex> hold(mutex_);
    const auto until = std::chrono::system_clock::now() + std::chrono::microseconds(timeout_us);
    return opened_.wait_until(hold, until, [this] { return open_; });
  }

  void open() {
    const std::lock_guard<std::mutex> hold(mutex_);
    open_ = true;
    opened_.notify_one();
  }

  // Relaxed: whoever shares a reference has one.
  void share() { refs_.fetch_add(1, std::memory_order_relaxed); }

  // Release and acquire: what each has done with it comes before it is freed.
  void let_go() {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;  // guarded by mutex_
  std::atomic<int> refs_{1};
};
