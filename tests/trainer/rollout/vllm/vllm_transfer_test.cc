// The order and the bodies of the requests with which weights go to vLLM over NCCL, with a group
// that only counts. No GPU takes part.
#include "trainer/rollout/vllm/vllm_transfer.h"

#include <absl/strings/escaping.h>
#include <absl/synchronization/mutex.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "trainer/rollout/endpoints/rollout_protocols.h"

namespace taopd::testing {
namespace {

using Json = nlohmann::json;

// The events of both sides, in their order.
class Events {
 public:
  void Add(const std::string& event) {
    absl::MutexLock lock(&mutex_);
    events_.push_back(event);
  }
  std::vector<std::string> Take() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(events_, {});
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::string> events_;
};

// Waits for the server's part of each collective, as NCCL does.
class CountingGroup final : public WeightBroadcast {
 public:
  CountingGroup(Events* events, absl::Mutex* mutex, int64_t* num_expected)
      : events_(events), mutex_(*mutex), num_expected_(num_expected) {}
  const std::string& unique_id() const override { return id_; }
  absl::Status Join(int64_t num_ranks, const KeepWaiting& keep_waiting) override {
    events_->Add(Concat("join of ", num_ranks));
    return Meet(keep_waiting);
  }
  absl::Status Send(const TensorView& tensor, const KeepWaiting& keep_waiting) override {
    events_->Add(Concat("tensor ", tensor.bytes.size()));
    return Meet(keep_waiting);
  }
  absl::Status Finish(const KeepWaiting&) override {
    events_->Add("all sent");
    return absl::OkStatus();
  }

 private:
  absl::Status Meet(const KeepWaiting& keep_waiting) {
    while (true) {
      {
        absl::MutexLock lock(&mutex_);
        const auto expected = [this] { return *num_expected_ > 0; };
        if (mutex_.AwaitWithTimeout(absl::Condition(&expected), absl::Milliseconds(1))) {
          --*num_expected_;
          return absl::OkStatus();
        }
      }
      TAOPD_RETURN_IF_ERROR(keep_waiting());
    }
  }

  Events* const events_;
  absl::Mutex& mutex_;
  int64_t* const num_expected_;
  const std::string id_ = std::string(128, '\x07');
};

class VllmTransferTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<float> values = {1, 2, 3, 4, 5, 6};
    const auto bytes = std::as_bytes(std::span(values));
    ASSERT_OK(WriteSafetensors(
        dir_.File("model.safetensors"),
        {{"b.weight", "F32", {2, 3}, bytes}, {"a.weight", "BF16", {4}, bytes.subspan(0, 8)}}));
  }
  // The server: takes part in as many collectives as the request announces, and then answers.
  absl::StatusOr<std::string> Answer(const std::string& path, const std::string& body,
                                     const std::stop_token& stop) {
    events_.Add(path);
    if (path == fails_at_) return absl::InternalError(Concat(path, ": HTTP 500"));
    // The end of a lock wakes Await, a request to stop does not.
    const std::stop_callback wake(stop, [this] { absl::MutexLock lock(&mutex_); });
    absl::MutexLock lock(&mutex_);
    bodies_[path] = body.empty() ? Json() : Json::parse(body);
    if (path == "/get_world_size") return std::string(R"({"world_size": 2})");
    if (path == "/init_weight_transfer_engine") num_expected_ = 1;
    if (path == "/update_weights")
      num_expected_ = static_cast<int64_t>(bodies_[path]["update_info"]["names"].size());
    const auto met = [&] { return num_expected_ == 0 || stop.stop_requested(); };
    mutex_.Await(absl::Condition(&met));
    if (num_expected_ == 0) return std::string("{}");
    num_expected_ = 0;  // for the next request
    return absl::CancelledError("stopped");
  }
  VllmTransfer MakeTransfer() {
    return {[this](const auto& path, const auto& body, const auto& stop) {
              return Answer(path, body, stop);
            },
            [this]() -> absl::StatusOr<std::unique_ptr<WeightBroadcast>> {
              return std::make_unique<CountingGroup>(&events_, &mutex_, &num_expected_);
            }};
  }

  const TempDir dir_;
  const std::stop_token never_;
  Events events_;
  absl::Mutex mutex_;
  int64_t num_expected_ = 0;
  std::map<std::string, Json> bodies_;
  std::string fails_at_;
};

TEST_F(VllmTransferTest, JoinsOnceAndBroadcastsInTheOrderOfTheNames) {
  VllmTransfer transfer = MakeTransfer();
  ASSERT_OK(transfer.Send(dir_.path(), never_));
  std::vector<std::string> events = events_.Take();
  // In parallel: the request, and the trainer's part.
  std::sort(events.begin() + 1, events.begin() + 3);
  EXPECT_EQ(events[0], "/get_world_size");
  EXPECT_EQ(events[1], "/init_weight_transfer_engine");
  EXPECT_EQ(events[2], "join of 3");
  const Json init = bodies_["/init_weight_transfer_engine"]["init_info"];
  EXPECT_EQ(init["rank_offset"], 1);
  EXPECT_EQ(init["world_size"], 3);
  EXPECT_EQ(init["packed"], false);
  EXPECT_EQ(init["nccl_unique_id_b64"], absl::Base64Escape(std::string(128, '\x07')));
  EXPECT_EQ(init.size(), 4u) << "vLLM refuses keys that it does not know";

  const Json update = bodies_["/update_weights"]["update_info"];
  EXPECT_EQ(update["names"], Json({"a.weight", "b.weight"}));
  EXPECT_EQ(update["dtype_names"], Json({"bfloat16", "float32"}));
  EXPECT_EQ(update["shapes"], Json::parse("[[4], [2, 3]]"));
  ASSERT_OK(transfer.Send(dir_.path(), never_));
  events = events_.Take();
  std::erase(events, "/update_weights");
  EXPECT_EQ(events, (std::vector<std::string>{"/start_weight_update", "tensor 8", "tensor 24",
                                              "all sent", "/finish_weight_update"}));
}

// vLLM refuses an update before it takes part in a broadcast, which would wait for ever.
TEST_F(VllmTransferTest, AnErrorOfTheServerEndsWhatWaitsForIt) {
  VllmTransfer transfer = MakeTransfer();
  for (const char* path : {"/init_weight_transfer_engine", "/update_weights"}) {
    SCOPED_TRACE(path);
    fails_at_ = path;
    EXPECT_ERROR(transfer.Send(dir_.path(), never_), kInternal, path);
    EXPECT_EQ(events_.Take().back(), "/shutdown_weight_transfer_engine");
  }
  // Then they meet again.
  fails_at_.clear();
  ASSERT_OK(transfer.Send(dir_.path(), never_));
  EXPECT_EQ(events_.Take().front(), "/get_world_size");
}

TEST_F(VllmTransferTest, StopsAndNamesWhatItCannotSend) {
  VllmTransfer transfer = MakeTransfer();
  std::stop_source stopped;
  stopped.request_stop();
  EXPECT_EQ(transfer.Send(dir_.path(), stopped.get_token()).code(), kCancelled);
  const std::vector<float> value = {1};
  ASSERT_OK(WriteSafetensors(dir_.File("model.safetensors"),
                             {{"a", "I32", {1}, std::as_bytes(std::span(value))}}));
  EXPECT_ERROR(transfer.Send(dir_.path(), never_), kInvalidArgument, "the type I32");
}

// This build has no NCCL, or the trainer no GPU.
TEST(VllmTransferOptions, RefusesByName) {
  RolloutWorkerOptions options;
  options.transfer = WeightTransfer::kNccl;
  EXPECT_ERROR(MakeVllmRolloutWorker(options), kInvalidArgument, "rollout.weight_transfer = nccl");
  options.transfer = WeightTransfer::kStream;
  EXPECT_ERROR(MakeVllmRolloutWorker(options), kInvalidArgument,
               "rollout.weight_transfer = stream");
}

}  // namespace
}  // namespace taopd::testing
