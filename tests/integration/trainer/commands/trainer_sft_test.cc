// Tests of supervised training on conversations: what is learned, its preview, its live page.

#include <httplib.h>

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;
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
    settings_ = {"--config", dir_.File("sft.yaml"),
                 "--set",    Concat("model.init=", WriteTextStudent()),
                 "--set",    Concat("data.train=[", dir_.File("chats.jsonl"), "]"),
                 "--set",    Concat("run.dir=", dir_.File("sft"))};
  }
  int RunWith(std::vector<std::string> command, std::string* output,
              const std::vector<std::string>& more = {}) {
    command.insert(command.end(), settings_.begin(), settings_.end());
    for (const std::string& setting : more) command.insert(command.end(), {"--set", setting});
    return Run(command, output);
  }
  Json Preview(const std::vector<std::string>& more = {}) {
    std::string output;
    EXPECT_EQ(RunWith({"data", "--sft", "--json"}, &output, more), 0) << output;
    return Json::parse(output.substr(output.find('{')), nullptr, /*allow_exceptions=*/false);
  }
  std::vector<std::string> settings_;
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

  std::string output;
  EXPECT_EQ(RunWith({"data", "--sft"}, &output), 0);
  EXPECT_THAT(output, HasSubstr("  the given response\ngh;\n"));

  // The template's variables reach both renderings; here they disagree.
  const std::string no_thinking = R"(data.chat_template_kwargs={"enable_thinking": false})";
  EXPECT_EQ(RunWith({"data", "--sft"}, &output, {no_thinking}), 65) << output;
  EXPECT_THAT(output, HasSubstr("chats.jsonl"));
  EXPECT_THAT(output, HasSubstr("renders the prompt in another way"));
  EXPECT_EQ(RunWith({"sft"}, &output, {no_thinking}), 65) << output;
  EXPECT_EQ(RunWith({"sft"}, &output, {"data.chat_template_kwargs=[1]"}), 64) << output;
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
  std::string output;
  ASSERT_EQ(RunWith({"sft"}, &output, {"data.assistant_turns=all"}), 0) << output;
  ASSERT_EQ(RunWith({"sft"}, &output,
                    {Concat("data.train=[", dir_.File("ids.jsonl"), "]"), "data.append_eos=false",
                     Concat("run.dir=", dir_.File("by_ids"))}),
            0)
      << output;
  EXPECT_EQ(FileHash(dir_.File("sft/model/model.safetensors")),
            FileHash(dir_.File("by_ids/model/model.safetensors")));
}

TEST_F(TrainerSftTest, ALivePageShowsPausesSavesAndStopsARun) {
  std::vector<std::string> arguments = {BinaryPath("taopd-trainer"), "sft"};
  arguments.insert(arguments.end(), settings_.begin(), settings_.end());
  for (const char* setting : {"trainer.total_steps=100000", "trainer.save_every=0"})
    arguments.insert(arguments.end(), {"--set", setting});
  Process trainer(arguments, dir_.File("sft.log"));
  const std::string mark = "control http=127.0.0.1:";
  ASSERT_TRUE(PollUntil(absl::Seconds(60), [&] {
    const std::string log = trainer.Output();
    return log.find('\n', log.find(mark)) != std::string::npos &&
           log.find(mark) != std::string::npos;
  })) << trainer.Output();
  const std::string log = trainer.Output();
  httplib::Client client("127.0.0.1", std::stoi(log.substr(log.find(mark) + mark.size())));
  const auto status = [&] { return Json::parse(client.Get("/status")->body); };
  const auto post = [&](const char* path) {
    const auto reply = client.Post(path, httplib::Headers{{"X-Taopd-Control", "1"}}, "", "");
    return reply ? reply->status : -1;
  };
  const auto reaches = [&](const char* phase) {
    return PollUntil(absl::Seconds(60), [&] { return status().at("phase") == phase; });
  };
  ASSERT_TRUE(PollUntil(absl::Seconds(60), [&] { return status().at("step") > 2; }));
  EXPECT_EQ(status().at("total_steps"), 100000);
  EXPECT_GT(status().at("eta_seconds"), 0);
  EXPECT_EQ(status().at("teacher").at("name"), "");
  EXPECT_THAT(client.Get("/metrics")->body, HasSubstr("loss_mean"));
  EXPECT_THAT(client.Get("/report")->body, HasSubstr("<html"));

  ASSERT_EQ(post("/pause"), 202);
  ASSERT_TRUE(reaches("paused"));
  const int64_t step = status().at("step");
  ASSERT_EQ(post("/save"), 202);
  ASSERT_TRUE(PollUntil(absl::Seconds(60), [&] { return NewestCheckpoint("sft") == step; }));
  EXPECT_EQ(status().at("step"), step) << "the pause goes on";
  ASSERT_EQ(post("/resume"), 202);
  ASSERT_TRUE(PollUntil(absl::Seconds(60), [&] { return status().at("step") > step; }));
  ASSERT_EQ(post("/stop"), 202);
  EXPECT_EQ(trainer.Wait(), 78) << trainer.Output();
  EXPECT_GT(NewestCheckpoint("sft"), step);

  // A stop during a pause ends the run at once, and --resume goes on from there.
  std::string output;
  const int64_t stopped = NewestCheckpoint("sft");
  ASSERT_EQ(RunWith({"sft", "--resume"}, &output, {Concat("trainer.total_steps=", stopped + 2)}), 0)
      << output;
  EXPECT_EQ(NewestCheckpoint("sft"), stopped + 2);
}

// The checkpoint of a step that is due is on the disk when the validation of the step begins.
TEST_F(TrainerSftTest, SavesBeforeItValidates) {
  std::string output;
  ASSERT_EQ(RunWith({"sft"}, &output,
                    {"trainer.save_every=1", "trainer.eval_every=1",
                     Concat("data.val=[", dir_.File("chats.jsonl"), "]")}),
            0)
      << output;
  const Json state = Json::parse(ReadFile(dir_.File("sft/checkpoints/step-000001/state.json")));
  const std::string metrics = ReadFile(dir_.File("sft/metrics.jsonl"));
  const std::string saved = metrics.substr(0, state.at("metrics_bytes").get<size_t>());
  EXPECT_THAT(saved, HasSubstr("loss/mean"));
  EXPECT_THAT(saved, ::testing::Not(HasSubstr("eval/loss")));
  EXPECT_THAT(metrics, HasSubstr("eval/loss"));
}

}  // namespace
}  // namespace taopd::testing
