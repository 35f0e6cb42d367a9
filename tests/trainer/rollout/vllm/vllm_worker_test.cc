// The worker for a vLLM server, against a server that answers as vLLM did.
#include <absl/synchronization/notification.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <latch>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/io/safetensors/safetensors.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/rollout/vllm/fake_vllm.h"
#include "trainer/rollout/endpoints/rollout_protocols.h"

namespace taopd::testing {
namespace {

using Json = nlohmann::json;

Json RecordedReplies() {
  return Json::parse(ReadFile(SourcePath("tests/trainer/rollout/vllm/golden/replies.json")));
}

class VllmWorkerTest : public ::testing::Test {
 protected:
  VllmWorkerTest() {
    needs_.vocab_size = 275;
    needs_.max_model_len = 200;
    needs_.sampling.num_log_probs = 2;
    needs_.dtype = "float32";
    needs_.eos_token_ids = {273};
    request_.prompt_ids = {1, 2, 3};
    request_.sampling.max_new_tokens = 4;
    request_.sampling.num_log_probs = 2;
  }

  RolloutWorkerOptions Options() const {
    RolloutWorkerOptions options;
    options.server = *ParseHttpUrl(Concat("http://127.0.0.1:", vllm_.port()));
    options.address = Concat("vllm+", options.server.Url());
    options.timeout = absl::Seconds(30);
    return options;
  }
  RolloutWorker& Worker() {
    if (worker_ == nullptr) worker_ = *MakeVllmRolloutWorker(Options());
    return *worker_;
  }
  // Weights whose content is `text`.
  PolicyWeights Weights(const std::string& version, const std::string& text) {
    PolicyWeights weights = {
        .version = version, .directory = dir_.File(version), .probe = FakeProbe(text)};
    std::filesystem::create_directory(weights.directory);
    WriteFile(weights.directory + "/weights", text);
    return weights;
  }
  // Checks the server. Returns weights, which it then has if `sets` is true.
  PolicyWeights Checked(bool sets) {
    EXPECT_OK(Worker().Check(needs_, never_));
    PolicyWeights weights = Weights("000001-a", "one");
    if (sets) EXPECT_OK(Worker().SetWeights(weights, never_));
    return weights;
  }
  // Returns a worker of its own with these options, which has been checked.
  std::unique_ptr<RolloutWorker> OtherWorker(const RolloutWorkerOptions& options) {
    auto worker = *MakeVllmRolloutWorker(options);
    EXPECT_OK(worker->Check(needs_, never_));
    return worker;
  }

  TempDir dir_;
  FakeVllm vllm_{RecordedReplies()};
  const std::stop_token never_;
  RolloutNeeds needs_;
  RolloutRequest request_;
  std::unique_ptr<RolloutWorker> worker_;
};

TEST_F(VllmWorkerTest, ChangesTheWeightsAndGenerates) {
  const PolicyWeights first = Checked(/*sets=*/false), second = Weights("000002-b", "two");
  const size_t num_before = vllm_.state().calls.size();
  ASSERT_OK(Worker().SetWeights(first, never_));
  std::vector<std::string> calls = vllm_.state().calls;
  calls.erase(calls.begin(), calls.begin() + static_cast<int64_t>(num_before));
  EXPECT_EQ(calls, (std::vector<std::string>{"/weight_info", "/update_weight_version", "/pause",
                                             "/collective_rpc reload_weights",
                                             "/reset_prefix_cache", "/resume",
                                             "/inference/v1/generate", "/update_weight_version"}));
  EXPECT_EQ(vllm_.state().version, "000001-a");
  EXPECT_EQ(vllm_.state().loaded_dir, first.directory);
  EXPECT_FALSE(vllm_.state().is_paused);
  ASSERT_OK_AND_ASSIGN(const WorkerRollout rollout, Worker().Generate(request_, first, never_));
  EXPECT_EQ(rollout.version, "000001-a");
  EXPECT_EQ(rollout.response_ids.size(), 4);
  EXPECT_EQ(vllm_.state().bodies["/inference/v1/generate"]["model"], "tiny");

  // Only weights that the server does not have are sent.
  const size_t num_calls = vllm_.state().calls.size();
  ASSERT_OK(Worker().SetWeights(first, never_));
  EXPECT_EQ(vllm_.state().calls.size(), num_calls + 1);
  ASSERT_OK(Worker().SetWeights(second, never_));
  EXPECT_EQ(vllm_.state().version, "000002-b");
  EXPECT_ERROR(Worker().Generate(request_, first, never_), kAborted,
               "\"000002-b\" instead of \"000001-a\"");
}

TEST_F(VllmWorkerTest, AReloadThatFailsLeavesNoVersion) {
  const PolicyWeights first = Checked(/*sets=*/true);
  PolicyWeights missing = Weights("000002-b", "two");
  std::filesystem::remove_all(missing.directory);
  EXPECT_ERROR(Worker().SetWeights(missing, never_), kInternal, "/collective_rpc: HTTP 500");
  EXPECT_EQ(vllm_.state().version, "updating");
  // After a roll-back: the server may hold half of the other weights, so it reads the first again.
  vllm_.SetHandler("/collective_rpc", nullptr);
  ASSERT_OK(Worker().Check(needs_, never_));
  ASSERT_OK(Worker().SetWeights(first, never_));
  EXPECT_EQ(vllm_.state().version, "000001-a");
}

TEST_F(VllmWorkerTest, AHeadThatDoesNotFollowIsFound) {
  vllm_.head_stays = true;
  EXPECT_ERROR(Worker().SetWeights(Checked(/*sets=*/false), never_), kFailedPrecondition,
               "vLLM has not loaded every tensor");
  EXPECT_EQ(vllm_.state().version, "updating");
}

TEST_F(VllmWorkerTest, ATiedHeadOnACpuIsRefusedOrWrittenApart) {
  needs_.has_tied_head = true;
  EXPECT_ERROR(Worker().Check(needs_, never_), kInvalidArgument,
               "--load-format dummy --hf-overrides '{\"tie_word_embeddings\": false}'");
  vllm_.server_info["vllm_config"]["model_config"]["hf_overrides"] = {
      {"tie_word_embeddings", false}};
  vllm_.server_info["vllm_config"]["load_config"]["load_format"] = "dummy";
  const PolicyWeights weights = Checked(/*sets=*/false);
  const std::vector<float> embedding = {1, 2, 3};
  ASSERT_OK(WriteSafetensors(
      weights.directory + "/model.safetensors",
      {{"model.embed_tokens.weight", "F32", {3, 1}, std::as_bytes(std::span(embedding))}}));
  ASSERT_OK(Worker().SetWeights(weights, never_));
  EXPECT_TRUE(vllm_.state().has_loaded_head);
  EXPECT_NE(vllm_.state().loaded_dir, weights.directory);
  EXPECT_FALSE(std::filesystem::exists(vllm_.state().loaded_dir));
  EXPECT_TRUE(std::filesystem::exists(weights.directory + "/model.safetensors"));
}

TEST_F(VllmWorkerTest, WhatTheServerWasStartedWithoutIsNamed) {
  vllm_.is_scale_out = false;
  EXPECT_ERROR(Worker().Check(needs_, never_), kFailedPrecondition,
               "start vLLM with --enable-scale-out");
  vllm_.is_dev_mode = false;
  EXPECT_ERROR(Worker().Check(needs_, never_), kFailedPrecondition,
               "start vLLM with VLLM_SERVER_DEV_MODE=1");
  vllm_.api_key = "k";
  EXPECT_ERROR(Worker().Check(needs_, never_), kPermissionDenied, "no API key was sent");
  vllm_.is_dev_mode = vllm_.is_scale_out = true;
  RolloutWorkerOptions options = Options();
  options.api_key = "k";
  OtherWorker(options);
}

TEST_F(VllmWorkerTest, AnotherVocabularyIsRefused) {
  needs_.vocab_size = 276;
  EXPECT_ERROR(Worker().Check(needs_, never_), kInvalidArgument, "out of vocabulary");
  needs_.vocab_size = 274;
  EXPECT_ERROR(Worker().Check(needs_, never_), kInvalidArgument, "more than the student's 274 ids");
}

TEST_F(VllmWorkerTest, AnUpdateThatFailsOrIsCancelledLeavesNoServerPaused) {
  const PolicyWeights weights = Checked(/*sets=*/false);
  for (const char* path : {"/pause", "/collective_rpc", "/reset_prefix_cache"}) {
    for (const bool ends_run : {false, true}) {
      SCOPED_TRACE(Concat(path, ends_run ? ", the run ends" : ""));
      const std::stop_source run;
      vllm_.SetHandler(path, [run, ends_run](const httplib::Request&, httplib::Response& reply) {
        reply.status = 400;
        if (ends_run) run.request_stop();
      });
      const absl::Status updated = Worker().SetWeights(weights, run.get_token());
      if (ends_run) {
        EXPECT_FALSE(updated.ok());
      } else {
        EXPECT_ERROR(updated, kInvalidArgument, path);
      }
      EXPECT_EQ(vllm_.state().calls.back(), "/resume");
      EXPECT_FALSE(vllm_.state().is_paused);
      EXPECT_EQ(vllm_.state().version, "updating");
    }
    vllm_.SetHandler(path, nullptr);
  }
}

TEST_F(VllmWorkerTest, ResumesAServerThatADeadTrainerHasPaused) {
  const PolicyWeights weights = Checked(/*sets=*/false);
  const auto fail = [](const httplib::Request&, httplib::Response& reply) { reply.status = 503; };
  vllm_.SetHandler("/collective_rpc", fail);
  vllm_.SetHandler("/resume", fail);
  EXPECT_ERROR(Worker().SetWeights(weights, never_), kUnavailable, "/collective_rpc: HTTP 503");
  EXPECT_TRUE(vllm_.state().is_paused);
  vllm_.SetHandler("/resume", nullptr);
  ASSERT_OK(Worker().Check(needs_, never_));
  EXPECT_FALSE(vllm_.state().is_paused);
}

TEST_F(VllmWorkerTest, FaultsOfGenerateAreToldApart) {
  const PolicyWeights weights = Checked(/*sets=*/true);
  const auto answer = [this](int status, const std::string& body) {
    vllm_.SetHandler("/inference/v1/generate",
                     [=](const httplib::Request&, httplib::Response& reply) {
                       reply.status = status;
                       reply.set_content(body, "application/json");
                     });
  };
  const std::string error = R"({"error":{"message":"engine","type":"x","param":null,"code":0}})";
  for (const auto& [status, code] : {std::pair(500, kInternal), std::pair(503, kUnavailable),
                                     std::pair(400, kInvalidArgument)}) {
    answer(status, error);
    EXPECT_ERROR(Worker().Generate(request_, weights, never_), code,
                 Concat("HTTP ", status, ": engine"));
  }
  answer(200, "{\"choices\": [{\"token_ids\": [1");
  EXPECT_ERROR(Worker().Generate(request_, weights, never_), kDataLoss, "");
  answer(200, std::string(1 << 20, ' '));
  EXPECT_ERROR(Worker().Generate(request_, weights, never_), kDataLoss, "the reply is longer than");
}

TEST_F(VllmWorkerTest, AHangEndsAtTheLimitOrWithItsOwnCancellation) {
  const PolicyWeights weights = Checked(/*sets=*/true);
  absl::Notification came;
  const auto ends = std::make_shared<absl::Notification>();  // the handlers outlive the test
  vllm_.SetHandler("/inference/v1/generate", [&came, ends](const auto&, auto&) {
    if (!came.HasBeenNotified()) came.Notify();
    ends->WaitForNotification();
  });
  std::stop_source mine;
  std::thread canceller([&] {
    came.WaitForNotification();
    mine.request_stop();
  });
  EXPECT_ERROR(Worker().Generate(request_, weights, mine.get_token()), kCancelled, "");
  canceller.join();
  EXPECT_ERROR(Worker().Generate(request_, weights, mine.get_token()), kCancelled, "");
  RolloutWorkerOptions options = Options();
  options.timeout = absl::Milliseconds(100);
  EXPECT_ERROR((*MakeVllmRolloutWorker(options))->Generate(request_, weights, never_),
               kDeadlineExceeded, "time limit");
  ends->Notify();
  // The cancellation was of one request: the worker goes on.
  vllm_.SetHandler("/inference/v1/generate", nullptr);
  EXPECT_OK(Worker().Generate(request_, weights, never_));
}

// One of two requests fails, so the server is checked while the other one is open. The open one
// keeps the needs of the Check before it.
TEST_F(VllmWorkerTest, ACheckBesideGenerateDoesNotAffectIt) {
  Json reply = RecordedReplies()["stop"];
  reply["choices"][0]["weight_versions"][0]["version"] = "000001-a";
  needs_.eos_token_ids = {reply["choices"][0]["token_ids"].back().get<int32_t>()};
  request_.sampling.max_new_tokens = 40;
  request_.sampling.num_log_probs = 0;
  const PolicyWeights weights = Checked(/*sets=*/true);
  std::latch both_came(2);
  std::atomic<int> num_came = 0;
  absl::Notification has_failed, may_end;
  vllm_.SetHandler("/inference/v1/generate",
                   [&](const httplib::Request&, httplib::Response& response) {
                     const bool fails = num_came++ == 0;
                     both_came.arrive_and_wait();
                     if (!fails) may_end.WaitForNotification();
                     response.status = fails ? 503 : 200;
                     response.set_content(reply.dump(), "application/json");
                   });
  std::atomic<int> num_answered = 0;
  const auto generate = [&] {
    const auto rollout = Worker().Generate(request_, weights, never_);
    if (absl::IsUnavailable(rollout.status())) return has_failed.Notify();
    EXPECT_OK(rollout);
    ++num_answered;
  };
  std::thread first(generate), second(generate);
  has_failed.WaitForNotification();
  vllm_.SetHandler("/inference/v1/generate", nullptr);
  RolloutNeeds other = needs_;
  other.eos_token_ids = {273};
  EXPECT_OK(Worker().Check(other, never_));
  EXPECT_EQ(num_answered, 0);
  may_end.Notify();
  first.join();
  second.join();
  EXPECT_EQ(num_answered, 1);
  EXPECT_ERROR(Worker().Generate(request_, weights, never_), kDataLoss,
               "which ends no sequence of the student");
}

TEST_F(VllmWorkerTest, DropsSequencesIfAskedTo) {
  std::string mode;
  vllm_.SetHandler("/pause", [&mode](const httplib::Request& request, httplib::Response& reply) {
    mode = request.get_param_value("mode");
    reply.set_content("{}", "application/json");
  });
  Checked(/*sets=*/true);
  EXPECT_EQ(mode, "wait");
  RolloutWorkerOptions options = Options();
  options.on_update = OnUpdate::kRestart;
  ASSERT_OK(OtherWorker(options)->SetWeights(Weights("000002-b", "two"), never_));
  EXPECT_EQ(mode, "abort");
}

}  // namespace
}  // namespace taopd::testing
