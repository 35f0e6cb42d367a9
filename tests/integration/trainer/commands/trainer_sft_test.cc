// Tests of supervised training on conversations: what is learned, its preview, its live page, and
// another model's tokenizer.

#include "tests/integration/model_configs.h"
#include "tests/integration/trainer/control_client.h"
#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using Json = nlohmann::json;

class TrainerSftTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    WriteTokenizer();
    WriteFile(dir_.File("tokenizer/chat_template.jinja"),
              "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
              "{% if add_generation_prompt %}[assistant]"
              "{% if enable_thinking is defined and not enable_thinking %}~{% endif %}"
              "{% endif %}");
    WriteFile(
        dir_.File("chats.jsonl"),
        R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "ab"},)"
        R"( {"role": "assistant", "content": "cd"}, {"role": "user", "content": "ef"},)"
        R"( {"role": "assistant", "content": "gh"}]})"
        "\n"
        R"({"prompt": [{"role": "user", "content": "ij"}],)"
        R"( "response": [{"role": "assistant", "content": "kl"}]})"
        "\n");
    settings_ = {"model.init=" + WriteTextStudent(), FileSetting("data.train", "chats.jsonl"),
                 RunDir("sft")};
  }
  Strings Arguments(const Strings& more = {}, const Strings& flags = {}) {
    return SftArguments(Joined(settings_, more), flags);
  }
  Strings DataArguments(const Strings& more = {}) {
    return With({"data", "--sft", "--config", dir_.File("sft.yaml")}, Joined(settings_, more));
  }
  Json Preview(const Strings& more = {}) {
    EXPECT_TRUE(Runs(Joined(DataArguments(more), {"--json"})));
    return Json::parse(output_.substr(output_.find('{')), nullptr, /*allow_exceptions=*/false);
  }
  Strings settings_;
};

TEST_F(TrainerSftTest, ThePreviewShowsWhatIsLearned) {
  const Json last = Preview().at("data").at(0);
  ASSERT_EQ(last.at("samples").size(), 2u);
  EXPECT_EQ(last.at("samples")[0].at("prompt"),
            "[system]s;[user]ab;[assistant]cd;[user]ef;[assistant]");
  EXPECT_EQ(last.at("samples")[0].at("response"), "gh;");
  EXPECT_EQ(last.at("samples")[1].at("prompt"), "[user]ij;[assistant]");
  EXPECT_EQ(last.at("samples")[1].at("response"), "kl;")
      << "and no token behind the template's end";
  EXPECT_EQ(last.at("response_tokens").at("total"),
            last.at("samples")[0].at("response_ids").size() +
                last.at("samples")[1].at("response_ids").size());

  const Json all = Preview({"data.assistant_turns=all"}).at("data").at(0);
  ASSERT_EQ(all.at("samples").size(), 3u);
  EXPECT_EQ(all.at("samples")[0].at("id"), "chats.jsonl:1:1");
  EXPECT_EQ(all.at("samples")[0].at("prompt"), "[system]s;[user]ab;[assistant]");
  EXPECT_EQ(all.at("samples")[0].at("response"), "cd;");
  EXPECT_TRUE(Runs(DataArguments()));
  EXPECT_THAT(output_, HasSubstr("  the given response\ngh;\n"));

  // The template's variables reach both renderings; here they disagree.
  const std::string no_thinking = R"(data.chat_template_kwargs={"enable_thinking": false})";
  ExpectFails(DataArguments({no_thinking}), 65, "chats.jsonl");
  EXPECT_THAT(output_, HasSubstr("renders the prompt differently"));
  EXPECT_EQ(Run(Arguments({no_thinking})), 65) << output_;
  EXPECT_EQ(Run(Arguments({"data.chat_template_kwargs=[1]"})), 64) << output_;
}

// The rows of the preview, given as token ids, make the same model.
TEST_F(TrainerSftTest, LearnsTheTokensOfThePreview) {
  const Json preview = Preview({"data.assistant_turns=all"}).at("data").at(0);
  std::string rows;
  for (const Json& sample : preview.at("samples")) {
    rows +=
        Json{{"prompt_ids", sample.at("prompt_ids")}, {"response_ids", sample.at("response_ids")}}
            .dump() +
        "\n";
  }
  WriteFile(dir_.File("ids.jsonl"), rows);
  ASSERT_TRUE(Runs(Arguments({"data.assistant_turns=all"})));
  ASSERT_TRUE(Runs(Arguments(
      {FileSetting("data.train", "ids.jsonl"), "data.append_eos=false", RunDir("by_ids")})));
  EXPECT_EQ(WeightsOf("sft"), WeightsOf("by_ids"));
}

TEST_F(TrainerSftTest, ALivePageShowsPausesSavesAndStopsARun) {
  Process trainer(Command(Arguments({"trainer.total_steps=100000", "trainer.save_every=0"})),
                  dir_.File("sft.log"));
  ControlClient client(ControlClient::AwaitPort(trainer));
  ASSERT_TRUE(client.PassesStep(2));
  const Json status = client.Status();
  EXPECT_EQ(status.at("total_steps"), 100000);
  EXPECT_GT(status.at("eta_seconds"), 0);
  EXPECT_EQ(status.at("teacher").at("name"), "");
  EXPECT_THAT(client.http.Get("/metrics")->body, HasSubstr("loss_mean"));
  EXPECT_THAT(client.http.Get("/report")->body, HasSubstr("<html"));

  const int64_t step = PauseSaveAndGoOn("sft", client);
  ASSERT_EQ(client.Post("/stop"), 202);
  EXPECT_EQ(trainer.Wait(), 78) << trainer.Output();
  EXPECT_GT(NewestCheckpoint("sft"), step);

  // A stop during a pause ends the run immediately, and --resume continues there.
  const int64_t stopped = NewestCheckpoint("sft");
  ASSERT_TRUE(Runs(Arguments({Concat("trainer.total_steps=", stopped + 2)}, {"--resume"})));
  EXPECT_EQ(NewestCheckpoint("sft"), stopped + 2);
}

TEST_F(TrainerSftTest, SavesBeforeItEndsOnALossThatIsNotFinite) {
  // The update of the first step makes weights whose squares overflow.
  ExpectFails(Arguments({"optimizer.lr=1e30", "trainer.save_every=0"}), 76, "step 2: loss");
  EXPECT_EQ(NewestCheckpoint("sft"), 1);
}

// A checkpoint is saved before the validation of its step, which a resumed run makes up for.
TEST_F(TrainerSftTest, SavesBeforeItValidates) {
  const auto sft = [&](int64_t steps, const Strings& flags) {
    return SftArguments(
        {RunDir("sft"), FileSetting("data.val", "pairs.jsonl"),
         Concat("trainer.total_steps=", steps), "trainer.save_every=1", "trainer.eval_every=1"},
        flags);
  };
  ASSERT_TRUE(Runs(sft(2, {})));
  // The second step has those of the first: the time that is left depends on them.
  EXPECT_GT(LastMetric("sft", "time/save_s"), 0);
  EXPECT_GT(LastMetric("sft", "time/evaluation_s"), 0);
  const std::string metrics = ReadFile(dir_.File("sft/metrics.jsonl"));
  const size_t last = metrics.rfind("{", metrics.rfind("eval/loss"));
  ASSERT_NE(last, std::string::npos);
  const auto state = ReadJson("sft/checkpoints/step-000002/state.json");
  EXPECT_LE(state.at("metrics_bytes").get<size_t>(), last);
  // The process seems to have died while it validated.
  WriteFile(dir_.File("sft/metrics.jsonl"), metrics.substr(0, last));
  ASSERT_TRUE(Runs(sft(3, {"--resume"})));
  EXPECT_EQ(Evaluations("sft").size(), 3U);
  ExpectFails(sft(3, {"--set", "optimizer.min_lr_ratio=0.1"}), 64, "optimizer.min_lr_ratio = 0.1");
}

TEST_F(TrainerSftTest, ALlama31StudentTakesOverTheTokenizerOfADistilledTeacher) {
  const std::string own = SharedData("tokenizers/llama3.1"),
                    other = SharedData("tokenizers/deepseek-r1-distill-qwen");
  if (own.empty() || other.empty()) GTEST_SKIP() << "shared data is absent";
  WriteFile(dir_.File("pairs.jsonl"), "{\"prompt\": \"Is 7 odd?\", \"response\": \"Yes.\"}\n");
  WriteFile(dir_.File("llama.json"), Llama31Config(128256).dump());
  const auto sft = [&](const std::string& run, const std::string& model,
                       const std::string& tokenizer) {
    return SftArguments({RunDir(run), model, "model.tokenizer=" + tokenizer, "optimizer.lr=0",
                         "trainer.total_steps=1", "trainer.batch_size=1"});
  };
  const std::string random = "model.config=" + dir_.File("llama.json");
  ASSERT_TRUE(Runs(sft("llama", random, own)));
  ASSERT_TRUE(Runs(sft("sft", "model.init=" + dir_.File("llama/model"), other)));
  const Json config = ReadJson("sft/model/config.json");
  EXPECT_EQ(config.at("vocab_size"), 151665);  // from 128256
  EXPECT_EQ(config.at("eos_token_id"), 151643);
  EXPECT_EQ(config.at("bos_token_id"), 151646);
  EXPECT_EQ(config.at("pad_token_id"), 151643);
  EXPECT_EQ(config.at("rope_scaling").at("rope_type"), "llama3");
  for (const std::string file : {"/tokenizer.json", "/tokenizer_config.json"})
    EXPECT_EQ(FileHash(dir_.File("sft/model") + file), FileHash(other + file));
  // Random weights have no rows to take over, so vocab_size in config.json must be large enough.
  ExpectFails(sft("refused", random, other), 65,
              "has 151665 tokens, more than the vocab_size 128256");
}

}  // namespace
}  // namespace taopd::testing
