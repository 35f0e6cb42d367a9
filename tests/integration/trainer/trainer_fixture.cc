#include "tests/integration/trainer/trainer_fixture.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "common/io/sha256.h"
#include "tests/integration/trainer/control_client.h"
#include "tests/support/process_usage.h"

namespace taopd::testing {

namespace fs = std::filesystem;

Strings Words(const std::string& text) {
  std::istringstream in(text);
  Strings words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

Strings Joined(Strings first, const Strings& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::string ModelConfigText() {
  return R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":512,
"hidden_size":32,"intermediate_size":64,"num_hidden_layers":2,"num_attention_heads":4,
"num_key_value_heads":2,"head_dim":8,"max_position_embeddings":128,"rms_norm_eps":1e-5,
"rope_theta":10000.0,"tie_word_embeddings":true,"attention_bias":false,"mlp_bias":false,
"hidden_act":"silu","initializer_range":0.1,"bos_token_id":1,"eos_token_id":2,
"torch_dtype":"float32"})";
}

void TrainerTest::SetUp() {
  WriteFile(dir_.File("student.json"), ModelConfigText());
  std::string pairs, prompts;
  RandomStream random(3);
  for (int row = 0; row < 24; ++row) {
    std::string ids = "1";
    for (uint64_t i = 0; i <= random.NextBelow(6); ++i)
      ids += Concat(",", 3 + random.NextBelow(500));
    pairs += Concat("{\"prompt_ids\":[", ids, "],\"response_ids\":[", 5 + row, ",7]}\n");
    prompts += Concat("{\"prompt_ids\":[", ids, "]}\n");
  }
  WriteFile(dir_.File("pairs.jsonl"), pairs);
  WriteFile(dir_.File("prompts.jsonl"), prompts);
  WriteFile(dir_.File("sft.yaml"),
            Concat("run: {name: student, dir: ", dir_.File("student"), "}\n",
                   "model: {config: ", dir_.File("student.json"), "}\n", "data: {train: [",
                   dir_.File("pairs.jsonl"), "], max_length: 64}\n", "optimizer: {lr: 1e-3}\n",
                   "trainer: {total_steps: 2, batch_size: 8, num_threads: 1}\n"));
  // The tests of a process share one supervised run; each gets a copy of its results.
  static const TempDir shared;
  const std::string own = dir_.File("student"), finished = shared.File("student");
  const bool is_first = !fs::exists(finished);
  if (is_first) {
    ASSERT_TRUE(Runs(SftArguments()));
  }
  fs::copy(is_first ? own : finished, is_first ? finished : own, fs::copy_options::recursive);
  WriteTrainConfig("");
}

void TrainerTest::WriteTrainConfig(const std::string& more) {
  WriteFile(dir_.File("train.yaml"),
            Concat("run: {name: test, dir: ", dir_.File("run"), ", seed: 11}\n",
                   "student: {model: ", dir_.File("student/model"), "}\n", "data: {train: [",
                   dir_.File("prompts.jsonl"), "], val: [", dir_.File("pairs.jsonl"),
                   "], train_batch_size: 4, max_prompt_length: 16, max_response_length: 12}\n",
                   "rollout: {n: 2}\n", "optimizer: {lr: 1e-3, weight_decay: 0.0}\n",
                   "trainer: {total_steps: 6, mini_batch_size: 2, save_every: 2, eval_every: 3, "
                   "num_threads: 1, peak_flops: 1.0e+10}\n",  // a start measures no peak
                   "eval: {measure: kl, num_prompts: 8}\n", more));
}

void TrainerTest::WriteTokenizer() {
  const std::string tokenizer = dir_.File("tokenizer");
  fs::create_directory(tokenizer);
  fs::copy_file(SourcePath("tests/common/text/data/qwen2_toy/tokenizer.json"),
                tokenizer + "/tokenizer.json");
  WriteFile(tokenizer + "/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  WriteFile(tokenizer + "/generation_config.json", R"({"eos_token_id": [270, 2]})");
  WriteFile(tokenizer + "/chat_template.jinja",
            "{% for message in messages %}{{ message.content }}{% endfor %}");
}

std::string TrainerTest::WriteTextStudent() {
  const std::string student = dir_.File("text_student");
  fs::copy(dir_.File("student/model"), student);
  fs::copy(dir_.File("tokenizer"), student);
  return student;
}

void TrainerTest::MakeModel(const std::string& run, const nlohmann::json& changes,
                            const Strings& settings) {
  auto config = nlohmann::json::parse(ModelConfigText());
  config.update(changes);
  const std::string path = dir_.File(run + ".json");
  WriteFile(path, config.dump());
  ASSERT_TRUE(Runs(SftArguments(
      Joined({"model.config=" + path, RunDir(run), "trainer.total_steps=1"}, settings))));
}

void TrainerTest::MakeQuickstart(const std::string& settings) {
  ASSERT_EQ(
      RunCommand({"/usr/bin/env", "python3", SourcePath("deploy/examples/addition/generate.py"),
                  dir_.File("data"), "--train", "48", "--val", "8", "--teacher-sft", "512",
                  "--student-sft", "512"}),
      0)
      << output_;
  for (const std::string name : {"teacher", "student"}) {
    const std::string recipe = SourcePath(Concat("deploy/recipes/addition/", name, "_sft.yaml"));
    const Strings of_model = {RunDir("quick_" + name),
                              "model.config=" + SourcePath("deploy/examples/addition/config.json"),
                              "model.tokenizer=" + dir_.File("data/tokenizer"),
                              FileSetting("data.train", Concat("data/", name, "_sft.jsonl"))};
    ASSERT_TRUE(Runs(With({"sft", "--config", recipe}, Joined(of_model, Words(settings)))));
  }
}

std::string TrainerTest::WriteProblems(int64_t count) {
  std::string problems;
  for (int64_t i = 0; i < count; ++i)
    problems += Concat("{\"prompt\": \"Once upon ", i, "\", \"answer\": \"", i, "\"}\n");
  WriteFile(dir_.File("problems.jsonl"), problems);
  return FileSetting("data.val", "problems.jsonl");
}

Strings TrainerTest::RewardSettings() {
  WriteTokenizer();
  std::string rows;
  for (int i = 0; i < 12; ++i) {
    rows += Concat("{\"prompt\": \"", i, " + ", i, " =\", \"answer\": \"(?s).*[!-P].*\", ",
                   "\"response\": \"is ", 2 * i, "\"}\n");
  }
  WriteFile(dir_.File("rows.jsonl"), rows);
  return Joined({"student.model=" + WriteTextStudent(), FileSetting("data.train", "rows.jsonl")},
                Words("data.val=[] eval.measure=none rollout.n=4 teacher.kind=none "
                      "objective.name=policy_gradient"));
}

void TrainerTest::Damage(const std::string& path) {
  std::string bytes = ReadFile(path);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  fs::remove(path);  // it may be read-only
  WriteFile(path, bytes);
}

ServingTeacher& TrainerTest::teacher() {
  if (teacher_) return *teacher_;
  static ServingTeacher shared(stories_);
  return shared;
}

Strings TrainerTest::Command(Strings arguments, int64_t num_ranks) {
  Strings command = {BinaryPath("taopd-trainer")};
  if (num_ranks > 1) command = Joined(command, Words(Concat("launch --nproc ", num_ranks, " --")));
  return Joined(std::move(command), arguments);
}

Strings TrainerTest::With(Strings arguments, const Strings& settings, const Strings& flags) {
  for (const std::string& setting : settings) {
    arguments.push_back("--set");
    arguments.push_back(setting);
  }
  return Joined(std::move(arguments), flags);
}

Strings TrainerTest::TrainArguments(const Strings& settings, const Strings& flags) {
  const bool has_teacher = std::any_of(settings.begin(), settings.end(), [](const std::string& s) {
    return s.starts_with("teacher.endpoints=") || s.starts_with("teacher.kind=");
  });
  return With({"train", "--config", dir_.File("train.yaml")},
              has_teacher ? settings : Joined({FromTeacher()}, settings), flags);
}

double TrainerTest::DistanceToTeacher(const Strings& settings, const Strings& flags) {
  const Strings arguments = {"eval", "--config", dir_.File("train.yaml"), "--output",
                             dir_.File("eval.json")};
  EXPECT_EQ(Run(With(arguments, settings, flags)), 0) << output_;
  return ReadJson("eval.json").at("kl_to_teacher");
}

std::map<std::string, std::string> TrainerTest::FilesOf(const std::string& dir) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(dir)) {
    if (!entry.is_regular_file()) continue;
    files[entry.path().lexically_relative(dir).string()] = FileHash(entry.path().string());
  }
  return files;
}

std::string TrainerTest::FileHash(const std::string& path) {
  auto hash = Sha256OfFile(path);
  return hash.ok() ? *hash : hash.status().ToString();
}

std::vector<nlohmann::json> TrainerTest::Lines(const std::string& name) {
  std::vector<nlohmann::json> rows;
  if (!Exists(name)) return rows;
  std::istringstream lines(ReadFile(dir_.File(name)));
  for (std::string line; std::getline(lines, line) && !lines.eof();)
    rows.push_back(nlohmann::json::parse(line));
  return rows;
}

std::vector<double> TrainerTest::Losses(const std::string& run) {
  std::vector<double> losses;
  for (const auto& row : Lines(run + "/metrics.jsonl")) {
    if (row.contains("loss/mean")) losses.push_back(row.at("loss/mean"));
  }
  return losses;
}

void TrainerTest::ExpectSameLosses(const std::string& a, const std::string& b, double relative) {
  const std::vector<double> losses = Losses(a), expected = Losses(b);
  ASSERT_EQ(losses.size(), expected.size()) << a;
  ASSERT_FALSE(losses.empty()) << a;
  EXPECT_TRUE(ReadFile(dir_.File(a + "/metrics.jsonl")).ends_with('\n')) << a;
  for (size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected[i], relative * std::abs(expected[i])) << a << " " << i;
}

double TrainerTest::LastMetric(const std::string& run, const std::string& name) {
  double value = std::numeric_limits<double>::quiet_NaN();
  for (const auto& row : Lines(run + "/metrics.jsonl")) {
    if (row.contains(name)) value = row.at(name);
  }
  return value;
}

std::vector<nlohmann::json> TrainerTest::Evaluations(const std::string& run) {
  std::vector<nlohmann::json> evaluations;
  for (nlohmann::json& row : Lines(run + "/metrics.jsonl")) {
    if (!row.contains("eval/n")) continue;
    row.erase("time");
    evaluations.push_back(std::move(row));
  }
  return evaluations;
}

std::multiset<std::string> TrainerTest::Samples(const std::string& run) {
  std::multiset<std::string> samples;
  for (const auto& row : Lines(run + "/samples.jsonl")) samples.insert(row.dump());
  return samples;
}

std::vector<nlohmann::json> TrainerTest::RollBacks(const std::string& run) {
  std::vector<nlohmann::json> events = Lines(run + "/events.jsonl");
  std::erase_if(events, [](const auto& event) { return event.at("event") != "rolled_back"; });
  return events;
}

std::set<int64_t> TrainerTest::Checkpoints(const std::string& run) {
  std::set<int64_t> steps;
  std::error_code error;  // the directory comes and goes while the trainer works
  for (fs::directory_iterator it(dir_.File(run + "/checkpoints"), error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    int64_t step = -1;
    if (name.starts_with("step-"))
      std::from_chars(name.data() + 5, name.data() + name.size(), step);
    if (step >= 0) steps.insert(step);
  }
  return steps;
}

int64_t TrainerTest::NewestCheckpoint(const std::string& run) {
  const std::set<int64_t> steps = Checkpoints(run);
  return steps.empty() ? -1 : *steps.rbegin();
}

std::string TrainerTest::CheckpointOf(const std::string& run, int64_t step) {
  const std::string digits = Concat(step);
  return dir_.File(run + "/checkpoints/step-" + std::string(6 - digits.size(), '0') + digits);
}

int64_t TrainerTest::PauseSaveAndGoOn(const std::string& run, ControlClient& page) {
  EXPECT_EQ(page.Post("/pause"), 202);
  EXPECT_TRUE(page.Reaches("paused"));
  const int64_t step = page.Step();
  EXPECT_EQ(page.Post("/save"), 202);
  EXPECT_TRUE(PollUntil(absl::Seconds(60),
                        [&] { return NewestCheckpoint(run) == step && page.Phase() == "paused"; }));
  EXPECT_EQ(page.Step(), step) << "the pause goes on";
  const std::string path = page.Status().value("last_checkpoint", "");
  EXPECT_TRUE(fs::exists(path + "/manifest.json")) << path;
  EXPECT_EQ(page.Post("/resume"), 202);
  EXPECT_TRUE(page.PassesStep(step));
  return step;
}

bool TrainerTest::AwaitCheckpoint(const std::string& run, int64_t step, Process& trainer) {
  return PollUntil(absl::Seconds(60),
                   [&] { return NewestCheckpoint(run) >= step || !trainer.running(); });
}

bool TrainerTest::AwaitOutput(const std::string& text, Process& program) {
  return PollUntil(absl::Seconds(60), [&] {
    return program.Output().find(text) != std::string::npos || !program.running();
  });
}

absl::Duration TrainerTest::TimeOf(const Strings& arguments) {
  const absl::Time start = absl::Now();
  EXPECT_TRUE(Runs(arguments));
  return absl::Now() - start;
}

void TrainerTest::KillAndResume(const Strings& arguments, const std::string& run,
                                absl::Duration whole, int64_t num_ranks) {
  const int64_t num_kills = NumKills(2), seed = NumberFromEnvironment("TAOPD_KILL_SEED", 1);
  SCOPED_TRACE(Concat("TAOPD_KILL_SEED=", seed));
  RandomStream random(static_cast<uint64_t>(seed));
  int64_t num_killed = 0;
  for (int64_t kill_number = 1; kill_number <= num_kills; ++kill_number) {
    Process trainer(Command(arguments, num_ranks), dir_.File("killed.log"));
    // A rank that dies before it has met the others leaves nothing to compare, and the others wait
    // for it for ten seconds.
    if (num_ranks > 1) {
      ASSERT_TRUE(AwaitOutput("world_size=", trainer));
    }
    // The moment is between the start and twice a kill's share of the whole run, but before the run
    // can end: its last steps are left to the last start.
    const absl::Duration moment =
        whole * (2 * random.NextUniform() / static_cast<double>(num_kills));
    PollUntil(moment, [&] {
      return NewestCheckpoint(run) >= kStepsPerKill * kill_number || !trainer.running();
    });
    const std::vector<pid_t> ranks = ChildrenOf(trainer.pid());  // by rank
    const size_t victim = random.NextBelow(static_cast<uint64_t>(num_ranks));
    if (num_ranks == 1) {
      trainer.Signal(SIGKILL);
    } else if (ranks.size() == static_cast<size_t>(num_ranks)) {
      kill(ranks[victim], SIGKILL);
    }
    const int code = trainer.Wait(absl::Seconds(60));
    if (code == 0 && kill_number > 1) break;  // a busy machine has delayed the kill beyond the end
    ASSERT_EQ(code, 128 + SIGKILL) << trainer.Output();
    ++num_killed;
    for (const pid_t rank : ranks) EXPECT_NE(kill(rank, 0), 0) << "a rank still runs";
    if (!ranks.empty()) {
      EXPECT_THAT(trainer.Output(), HasSubstr(Concat("rank ", victim, " has died")));
    }
  }
  EXPECT_GE(2 * num_killed, num_kills) << "the run ended before half of the kills";
  // All kills may come before the first checkpoint.
  ASSERT_TRUE(Runs(arguments, num_ranks));
}

}  // namespace taopd::testing
