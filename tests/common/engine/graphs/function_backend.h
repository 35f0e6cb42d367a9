// A GraphBackend on the CPU. The record of a function is the function itself, and a replay calls it
// again. This behaves like a CUDA graph as long as the function reads nothing from the host and the
// memory that it reads does not move; both are checked.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/graphs/graph_backend.h"
#include "common/model/decoder.h"

namespace taopd::testing {

// The events of a backend that an engine owns, for a test.
struct BackendLog {
  int num_sets = 0;
  std::vector<int64_t> num_records;  // one number per set
  int num_replays = 0;
  // The number of records that succeed before all later ones fail; -1 if none fail.
  int fails_after = -1;
  std::vector<std::string> waits;  // operations that wait for a device, seen in recorded functions
  int num_operations = 0;          // all of them
};

class FunctionBackend final : public GraphBackend {
 public:
  // Both must outlive the backend and its records.
  FunctionBackend(const Decoder* decoder, BackendLog* log) : decoder_(decoder), log_(log) {}

  void BeginSet() override {
    EXPECT_EQ(num_alive_, 0) << "records of an earlier set are still there";
    EXPECT_FALSE(in_set_);
    in_set_ = true;
    ++log_->num_sets;
    log_->num_records.push_back(0);
  }

  void EndSet() override {
    EXPECT_TRUE(in_set_);
    in_set_ = false;
  }

  std::unique_ptr<RecordedStep> Record(const std::function<void()>& step) override {
    EXPECT_TRUE(in_set_);
    TORCH_CHECK(log_->fails_after != 0, "this cannot be recorded");
    if (log_->fails_after > 0) --log_->fails_after;
    // One thread, because several rows may share a place.
    const int num_threads = at::get_num_threads();
    at::set_num_threads(1);
    Watched(step);
    at::set_num_threads(num_threads);
    ++log_->num_records.back();
    return std::make_unique<Function>(this, step);
  }

 private:
  class Function final : public RecordedStep {
   public:
    Function(FunctionBackend* backend, std::function<void()> step)
        : backend_(backend),
          step_(std::move(step)),
          addresses_(backend->decoder_->InferenceAddresses()) {
      ++backend_->num_alive_;
    }
    ~Function() override { --backend_->num_alive_; }
    void Replay() override {
      EXPECT_EQ(addresses_, backend_->decoder_->InferenceAddresses())
          << "a replay would read what lay elsewhere when it was recorded";
      ++backend_->log_->num_replays;
      step_();
    }

   private:
    FunctionBackend* const backend_;
    const std::function<void()> step_;
    const std::vector<const void*> addresses_;
  };

  inline static thread_local BackendLog* watching = nullptr;
  static std::unique_ptr<at::ObserverContext> Note(const at::RecordFunction& function) {
    if (watching == nullptr) return nullptr;
    ++watching->num_operations;
    const std::string name = function.name();
    for (const char* waiting : {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero",
                                "aten::nonzero", "aten::bincount", "aten::masked_select"}) {
      if (name == waiting) watching->waits.push_back(name);
    }
    return nullptr;
  }
  void Watched(const std::function<void()>& step) {
    watching = log_;
    const auto handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&Note).scopes({at::RecordScope::FUNCTION}));
    step();
    at::removeCallback(handle);
    watching = nullptr;
  }

  const Decoder* const decoder_;
  BackendLog* const log_;
  bool in_set_ = false;
  int num_alive_ = 0;
};

}  // namespace taopd::testing
