#include "common/config/settings.h"

#include "common/config/yaml.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

struct OptimizerConfig {
  double lr = 1e-6;
  std::vector<double> betas = {0.9, 0.999};
  int64_t warmup_steps = 0;
  std::string schedule = "constant";
  void Declare(SettingTable& keys) {
    keys.Add("lr", &lr, "Peak learning rate.", AtLeast(0.0));
    keys.Add("betas", &betas, "AdamW's betas.");
    keys.Add("warmup_steps", &warmup_steps, "Warm-up.", AtLeast<int64_t>(0));
    keys.Add("schedule", &schedule, "Shape.", OneOf({"constant", "linear", "cosine"}));
  }
};

struct TermConfig {
  std::string name = "a";
  double weight = 1;
  void Declare(SettingTable& keys) {
    keys.Add("name", &name, "Which.", OneOf({"a", "b"}));
    keys.Add("weight", &weight, "Factor.", MoreThan(0.0));
  }
};

struct Config {
  std::string name;
  bool resume = false;
  std::vector<std::string> files;
  OptimizerConfig optimizer;
  std::vector<TermConfig> terms;
  void Declare(SettingTable& keys) {
    keys.Add("name", &name, "Name.");
    keys.Add("resume", &resume, "Resume.");
    keys.Add("files", &files, "Files.");
    keys.AddList("terms", &terms, "Terms.");
    keys.AddSection("optimizer", "The optimizer.", optimizer);
  }
};

absl::Status Read(const std::string& text, Config* config) {
  return ReadYamlSettings(text, "c.yaml", DescribeSettings(*config));
}

TEST(YamlSettings, SetsWhatIsNamedAndKeepsTheRest) {
  Config config;
  ASSERT_OK(
      Read("name: a b\nresume: true\nfiles: [x, y]\noptimizer:\n  lr: 5e-4\n  betas: [0.9, 1]\n",
           &config));
  EXPECT_EQ(config.name, "a b");
  EXPECT_TRUE(config.resume);
  EXPECT_EQ(config.files, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(config.optimizer.lr, 5e-4);
  EXPECT_EQ(config.optimizer.betas, (std::vector<double>{0.9, 1}));
  EXPECT_EQ(config.optimizer.schedule, "constant");
}

TEST(YamlSettings, UnknownKeyNamesLineAndNearest) {
  Config config;
  EXPECT_ERROR(Read("name: a\noptimizer:\n  lrr: 1\n", &config), kInvalidArgument,
               "c.yaml:3: unknown key \"optimizer.lrr\" (did you mean \"lr\"?)");
  EXPECT_ERROR(Read("warmup_steps: 1\n", &config), kInvalidArgument,
               "did you mean \"optimizer.warmup_steps\"?");
  EXPECT_ERROR(Read("optimiser:\n  lr: 1\n", &config), kInvalidArgument,
               "did you mean \"optimizer\"?");
}

TEST(YamlSettings, WrongTypesAreRefused) {
  for (const char* text :
       {"resume: 1", "resume: \"true\"", "optimizer: {warmup_steps: 1.5}",
        "optimizer: {warmup_steps: 1e3}", "optimizer: {warmup_steps: \"5\"}",
        "optimizer: {warmup_steps: 99999999999999999999}", "optimizer: {lr: abc}",
        "optimizer: {lr: 1x}", "optimizer: {lr: }", "files: x", "files: [[x]]", "name: [a]",
        "optimizer: 5", "- a", "optimizer: {lr: inf}", "optimizer: {lr: nan(1)}",
        "optimizer: {betas: [a]}"}) {
    Config config;
    EXPECT_EQ(Read(text, &config).code(), kInvalidArgument) << text;
  }
}

TEST(YamlSettings, DamagedTextIsRefusedWithItsLine) {
  Config config;
  EXPECT_ERROR(Read("name: a\nname: b\n", &config), kInvalidArgument,
               "c.yaml:2: name is given twice");
  EXPECT_ERROR(Read("name: [a\n", &config), kInvalidArgument, "not YAML");
  for (const char* end : {"---\n", "...\n", "---\n---\n"}) {
    EXPECT_OK(Read(Concat("name: a\n", end), &config));
    EXPECT_ERROR(Read(Concat("name: a\n", end, "# c\nlr: 1\n"), &config), kInvalidArgument,
                 ": text follows the end of the document");
  }
  EXPECT_OK(Read("", &config));
  EXPECT_ERROR(ReadYamlFile("/nowhere.yaml", DescribeSettings(config)), kNotFound, "/nowhere.yaml");
  EXPECT_ERROR(ReadYamlFile("/", DescribeSettings(config)), kInvalidArgument,
               "the configuration file cannot be read: cannot read /: Is a directory");
}

TEST(YamlValues, AreReadWithoutAnyDeclaration) {
  ASSERT_OK_AND_ASSIGN(
      const auto values,
      ReadYamlValues("run:\n  name: \"a\"\n  seed: 1\nterms: [{name: x, weight: 0.5}, b]\nnone:\n",
                     "c"));
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"run.name", "a"}, {"run.seed", "1"}, {"terms", "[{name: x, weight: 0.5}, b]"}, {"none", ""}};
  EXPECT_EQ(values, expected);
  EXPECT_ERROR(ReadYamlValues("- a", "c"), kInvalidArgument, "top level");
  EXPECT_ERROR(ReadYamlValues("a: [", "c"), kInvalidArgument, "not YAML");
  EXPECT_ERROR(ReadYamlValues("a: 1\n---\nb: 2", "c"), kInvalidArgument, "c:3: text follows");
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += "{a: ";
  EXPECT_OK(ReadYamlValues("b: " + deep + "1" + std::string(200, '}'), "c"));
}

TEST(YamlSettings, WrittenTextReadsBackUnchanged) {
  Config config = {.name = "quote \" and \\ and\nline", .files = {"a, b", "", "true"}};
  config.optimizer.lr = 0.1 + 0.2;
  config.optimizer.betas = {1, 1e-300};
  const std::string text = WriteYamlSettings(DescribeSettings(config));
  Config read;
  ASSERT_OK(Read(text, &read));
  EXPECT_EQ(read.name, config.name);
  EXPECT_EQ(read.files, config.files);
  EXPECT_EQ(read.optimizer.lr, config.optimizer.lr);
  EXPECT_EQ(read.optimizer.betas, config.optimizer.betas);
  EXPECT_EQ(WriteYamlSettings(DescribeSettings(read)), text);
}

TEST(YamlSettings, ListsOfSections) {
  Config config;
  ASSERT_OK(Read("terms:\n- {name: b, weight: 0.5}\n- weight: 2\n", &config));
  ASSERT_EQ(config.terms.size(), 2u);
  EXPECT_EQ(config.terms[0].name, "b");
  EXPECT_EQ(config.terms[0].weight, 0.5);
  EXPECT_EQ(config.terms[1].name, "a");
  EXPECT_EQ(config.terms[1].weight, 2);
  // It is written as one line that reads back; a list replaces the previous one.
  const std::string text = WriteYamlSettings(DescribeSettings(config));
  EXPECT_THAT(text, HasSubstr("terms: [{name: \"b\", weight: 0.5}, {name: \"a\", weight: 2.0}]"));
  Config read;
  read.terms.resize(5);
  ASSERT_OK(Read(text, &read));
  EXPECT_EQ(WriteYamlSettings(DescribeSettings(read)), text);
  ASSERT_OK(ApplyOverride("terms=[{name: a, weight: 3}]", DescribeSettings(read)));
  ASSERT_EQ(read.terms.size(), 1u);
  EXPECT_EQ(read.terms[0].weight, 3);
  ASSERT_OK(ApplyOverride("terms=[]", DescribeSettings(read)));
  EXPECT_TRUE(read.terms.empty());

  EXPECT_ERROR(Read("name: x\nterms: [{nam: a}]\n", &config), kInvalidArgument,
               "c.yaml:2: terms: [0]:2: unknown key \"nam\" (did you mean \"name\"?)");
  EXPECT_ERROR(Read("terms: [a]", &config), kInvalidArgument, "[0]: a section is expected");
  EXPECT_ERROR(Read("terms: a", &config), kInvalidArgument, "a list of sections is expected");
  EXPECT_ERROR(Read("terms: {name: a}", &config), kInvalidArgument,
               "a list of sections is expected");
  EXPECT_ERROR(Read("terms: [{weight: x}]", &config), kInvalidArgument, "\"x\" is not a number");
  ASSERT_OK(Read("terms: [{name: a}, {weight: -1}]", &config));
  EXPECT_ERROR(CheckSettings(DescribeSettings(config)), kInvalidArgument,
               "terms[1]: weight = -1.0: must be more than 0");
  EXPECT_THAT(SettingsReference(DescribeSettings(config)),
              HasSubstr("| `terms[].weight` | number | `1.0` | Factor. |"));
}

struct AutoConfig {
  std::optional<int64_t> tokens = 5;
  std::optional<double> size;
  void Declare(SettingTable& keys) {
    keys.Add("tokens", &tokens, "Tokens.", AutoOr(AtLeast<int64_t>(1)));
    keys.Add("size", &size, "Size.", AutoOr(MoreThan(0.0)));
  }
};

TEST(YamlSettings, NumbersThatMayBeAuto) {
  AutoConfig config;
  EXPECT_EQ(WriteYamlSettings(DescribeSettings(config)), "tokens: 5\nsize: auto\n");
  ASSERT_OK(ReadYamlSettings("tokens: auto\nsize: 0.5\n", "t", DescribeSettings(config)));
  EXPECT_FALSE(config.tokens.has_value());
  EXPECT_EQ(config.size, 0.5);
  EXPECT_OK(CheckSettings(DescribeSettings(config)));
  EXPECT_ERROR(ReadYamlSettings("tokens: all\n", "t", DescribeSettings(config)), kInvalidArgument,
               "\"all\" is not an integer, and not auto");
  EXPECT_FALSE(ReadYamlSettings("tokens: \"auto\"\n", "t", DescribeSettings(config)).ok());
  config.tokens = 0;
  EXPECT_ERROR(CheckSettings(DescribeSettings(config)), kInvalidArgument,
               "tokens = 0: must be at least 1");
  EXPECT_EQ(SettingTypeName(DescribeSettings(config).settings()[0].pointer), "integer or auto");
}

TEST(Settings, ChecksNameThePathAndTheValue) {
  Config config;
  config.optimizer.lr = -1;
  EXPECT_ERROR(CheckSettings(DescribeSettings(config)), kInvalidArgument,
               "optimizer.lr = -1.0: must be at least 0");
  config.optimizer.lr = 1;
  config.optimizer.schedule = "linea";
  EXPECT_ERROR(CheckSettings(DescribeSettings(config)), kInvalidArgument,
               "did you mean \"linear\"?");
}

TEST(Settings, OverridesWinAndAreChecked) {
  Config config;
  const SettingTable table = DescribeSettings(config);
  EXPECT_OK(ApplyOverride("optimizer.lr=1e-3", table));
  EXPECT_OK(ApplyOverride("name=a=b", table));
  EXPECT_OK(ApplyOverride("files=[p, q]", table));
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(config.name, "a=b");
  EXPECT_EQ(config.files.size(), 2u);
  EXPECT_OK(ApplyOverride("name=", table));
  EXPECT_EQ(config.name, "");
  for (const char* text : {" a\nb # c ", "[p, q", "a: b", "null", "- x", "--- a\n...\nb"}) {
    EXPECT_OK(ApplyOverride(Concat("name=", text), table));
    EXPECT_EQ(config.name, text);
  }
  EXPECT_OK(ApplyOverride("name=\"a\\n # c\"", table));
  EXPECT_EQ(config.name, "a\n # c");
  EXPECT_ERROR(ApplyOverride("name=\"a\" b", table), kInvalidArgument, "text follows the end");
  EXPECT_ERROR(ApplyOverride("optimizer.l=1", table), kInvalidArgument, "optimizer.l");
  EXPECT_ERROR(ApplyOverride("optimizer.lr", table), kInvalidArgument, "section.key=value");
  for (const char* assignment : {"optimizer.betas=[0.5] x", "optimizer.betas=[0.5] --- x"})
    EXPECT_ERROR(ApplyOverride(assignment, table), kInvalidArgument, "text follows the end");
}

TEST(Settings, AMisspeltSectionIsComparedWithItsKey) {
  struct TwoNames {
    TermConfig run, objective;
    void Declare(SettingTable& keys) {
      keys.AddSection("run", "Run.", run);
      keys.AddSection("objective", "Objective.", objective);
    }
  } config;
  const SettingTable table = DescribeSettings(config);
  EXPECT_ERROR(ApplyOverride("objectve.name=a", table), kInvalidArgument,
               "unknown key \"objectve.name\" (did you mean \"objective.name\"?)");
  EXPECT_ERROR(ApplyOverride("objectve.wieght=1", table), kInvalidArgument,
               "did you mean \"objective.weight\"?");
  // No section is similar, but the name itself exists elsewhere.
  EXPECT_ERROR(ApplyOverride("loss.weight=1", table), kInvalidArgument,
               "did you mean \"run.weight\"?");
}

// A suggestion must be a key that may have been meant.
TEST(Settings, OnlyNearKeysAreSuggested) {
  struct TwoSections {
    TermConfig run;
    OptimizerConfig optimizer;
    void Declare(SettingTable& keys) {
      keys.AddSection("run", "Run.", run);
      keys.AddSection("optimizer", "Optimizer.", optimizer);
    }
  } config;
  const SettingTable table = DescribeSettings(config);
  const auto message = [&](const char* assignment) {
    return std::string(ApplyOverride(assignment, table).message());
  };
  EXPECT_THAT(message("optimizer.name=a"), Not(HasSubstr("did you mean")));
  EXPECT_THAT(message("optimizer.weight=a"), Not(HasSubstr("did you mean")));
  EXPECT_THAT(message("optimizer.xy=1"), Not(HasSubstr("did you mean")));
  EXPECT_THAT(message("optimizer.l=1"), HasSubstr("did you mean \"lr\"?"));
  EXPECT_THAT(message("lr=1"), HasSubstr("did you mean \"optimizer.lr\"?"));
}

TEST(Settings, AnEmptyChoiceIsShown) {
  const auto check = OneOf({"linear", "cosine", ""});
  EXPECT_EQ(check("x").message(), "must be one of linear, cosine, \"\"");
  EXPECT_EQ(check("linea").message(),
            "must be one of linear, cosine, \"\" (did you mean \"linear\"?)");
  EXPECT_OK(check(""));
}

TEST(Settings, ReferenceListsEverySetting) {
  Config config;
  const SettingTable table = DescribeSettings(config);
  const std::string reference = SettingsReference(table);
  for (const Setting& setting : table.settings())
    EXPECT_THAT(reference, HasSubstr("`" + setting.path + "`"));
}

enum class Color { kRed, kGreen };
EnumNames<Color> NamesOf(Color) { return {{Color::kRed, "red"}, {Color::kGreen, "green"}}; }
struct PaintConfig {
  Color color = Color::kGreen;
  void Declare(SettingTable& keys) { keys.Add("color", &color, "What it looks like."); }
};

TEST(WordSettings, AreEnumsThatAreReadAndWrittenAsWords) {
  PaintConfig config;
  const SettingTable table = DescribeSettings(config);
  EXPECT_EQ(SettingText(table.settings()[0].pointer), "\"green\"");
  EXPECT_EQ(SettingTypeName(table.settings()[0].pointer), "text");
  EXPECT_OK(ReadYamlSettings("color: red", "file", table));
  EXPECT_EQ(config.color, Color::kRed);
  EXPECT_ERROR(ReadYamlSettings("color: gren", "file", table), kInvalidArgument,
               "file:1: color = \"gren\": must be one of red, green (did you mean \"green\"?)");
  EXPECT_ERROR(ReadYamlSettings("color: [red]", "file", table), kInvalidArgument,
               "color: a single value is expected");
  EXPECT_EQ(config.color, Color::kRed) << "what is refused changes nothing";
  EXPECT_EQ(WriteYamlSettings(table), "color: \"red\"\n");
}

}  // namespace
}  // namespace taopd::testing
