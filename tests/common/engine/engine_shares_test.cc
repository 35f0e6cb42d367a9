// Tests of which clients are refused when one client floods the queue.
#include "common/engine/torch_engine.h"
#include "tests/common/engine/markov_decoder.h"
#include "tests/common/engine/result_box.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(EngineSharesTest, AClientOverItsShareIsRefusedAndANewcomerIsNot) {
  const EngineOptions options = {
      .max_num_seqs = 1, .max_queued_tokens = 8, .max_client_queue_share = 0.5};
  const auto decoder = std::make_shared<MarkovDecoder>(16);
  ResultBox box;  // outlives the engine
  ASSERT_OK_AND_ASSIGN(const auto engine, MakeTorchEngine(decoder, options, Clock::Real()));
  EXPECT_EQ(engine->limits().max_client_queued_tokens, 4);
  decoder->CloseGate();
  int key = 0;
  const auto submit = [&](const std::string& client, size_t num_tokens) {
    InferenceRequest request = Generation(std::vector<int32_t>(num_tokens, 1), 1);
    request.client = client;
    return engine->Submit(request, box.Done(key++)) != 0;
  };
  EXPECT_TRUE(submit("flooder", 1));
  decoder->WaitForCalls(1);  // it runs, and the queue is empty
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(submit("flooder", 1)) << i;
  EXPECT_FALSE(submit("flooder", 1));
  EXPECT_ERROR(box.Wait(5), kResourceExhausted, "max_client_queue_share 0.5");
  EXPECT_TRUE(submit("polite", 2));
  EXPECT_FALSE(submit("polite", 2));
  EXPECT_FALSE(submit("third", 3));
  EXPECT_ERROR(box.Wait(8), kResourceExhausted, "max_queued_tokens 8");
  EXPECT_EQ(engine->stats().refused_client_share, 2u);
  EXPECT_EQ(engine->stats().refused_queue_full, 1u);
  decoder->OpenGate();
  EXPECT_OK(box.Wait(6));
}

}  // namespace
}  // namespace taopd::testing
