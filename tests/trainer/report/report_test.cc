#include "trainer/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "trainer/report/charts/run_style.h"
#include "trainer/report/page/page.h"

namespace taopd::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kOneStep[] = "{\"step\":1,\"loss/mean\":1}\n";

class ReportTest : public ::testing::Test {
 protected:
  std::string MakeRun(const std::string& name, const std::string& metrics) {
    const std::string run_dir = dir_.File(name);
    std::filesystem::create_directories(run_dir);
    testing::WriteFile(run_dir + "/metrics.jsonl", metrics);
    return run_dir;
  }
  std::string Page(const std::vector<std::string>& run_dirs) {
    EXPECT_OK(WriteReport(run_dirs, dir_.File("report.html")));
    return testing::ReadFile(dir_.File("report.html"));
  }
  const testing::TempDir dir_;
};

TEST_F(ReportTest, TheHeadlineOfASummary) {
  const std::string run = MakeRun("r", "{\"step\":8,\"time\":0,\"loss/mean\":0.5}\n");
  testing::WriteFile(run + "/summary.json",
                     "{\"teacher_accuracy\":0.75,\"student_accuracy_before\":0.25,"
                     "\"student_accuracy_after\":0.65,\"student_accuracy_after_low\":0.61,"
                     "\"student_accuracy_after_high\":0.69,\"student_accuracy_after_n\":500,"
                     "\"steps\":200,\"seconds\":3725}");
  const std::string page = Page({run});
  EXPECT_THAT(page, HasSubstr("aria-label=\"r, before 25.0%, after 65.0%, teacher 75.0%\""));
  EXPECT_THAT(page, HasSubstr("<b>65.0%</b> <small>61.0%&ndash;69.0%, n&nbsp;=&nbsp;500</small>"));
  EXPECT_THAT(page, HasSubstr("<td data-label=\"Gap closed\" data-value=\"0.8\">80%</td>"));
  EXPECT_THAT(page, HasSubstr("<td data-label=\"Steps\" data-value=\"200\">200</td>"));
  EXPECT_THAT(page, HasSubstr("<td data-label=\"Time\" data-value=\"3725\">1h2m5s</td>"));
  EXPECT_THAT(page, Not(HasSubstr("data-label=\"KL before\"")));
}

TEST_F(ReportTest, ChartsOfTermsOverlapAndFullKl) {
  const std::string run = MakeRun("r",
                                  "{\"step\":1,\"loss/term/ta_opd\":0.5,\"loss/term/"
                                  "<b>\":1,\"policy/overlap\":0.75,\"policy/full_kl\":2}\n");
  const std::string page = Page({run});
  for (const char* id : {"term-ta-opd", "overlap", "full-kl"})
    EXPECT_THAT(page, HasSubstr(Concat("id=\"", id, "\"")));
  EXPECT_THAT(page, HasSubstr("Loss term ta_opd"));
  EXPECT_THAT(page, Not(HasSubstr("Loss term <b>")));
  EXPECT_THAT(Page({MakeRun("s", kOneStep)}), Not(HasSubstr("Loss term")));
}

TEST_F(ReportTest, ARunMeasuredByKl) {
  const std::string run = MakeRun("r", "{\"step\":8,\"eval/kl_to_teacher\":0.5}\n");
  testing::WriteFile(run + "/summary.json",
                     "{\"student_kl_to_teacher_before\":1.25,"
                     "\"student_kl_to_teacher_after\":0.0625}");
  const std::string page = Page({run});
  EXPECT_THAT(page, HasSubstr("<td data-label=\"KL before\" data-value=\"1.25\">1.25</td>"));
  EXPECT_THAT(page, HasSubstr("<td data-label=\"KL after\" data-value=\"0.0625\">0.0625</td>"));
  EXPECT_THAT(page, HasSubstr("id=\"eval-kl\""));
}

TEST_F(ReportTest, WithoutASummaryTheEvaluationsSpeak) {
  const std::string run =
      MakeRun("r",
              "{\"step\":0,\"eval/accuracy\":0.125}\n{\"step\":5,\"eval/accuracy\":0.2}\n"
              "{\"step\":10,\"eval/accuracy\":0.5,\"eval/accuracy_low\":0.4,"
              "\"eval/accuracy_high\":0.6}\n");
  const std::string page = Page({run});
  EXPECT_THAT(page, HasSubstr("aria-label=\"r, before 12.5%, after 50.0%\""));
  EXPECT_THAT(page, HasSubstr("<b>50.0%</b> <small>40.0%&ndash;60.0%</small>"));
  EXPECT_THAT(page, HasSubstr("Not ended: r. Before and after are the first and the latest"));
}

TEST_F(ReportTest, ARunThatWroteItsModelHasEndedEvenWithoutASummary) {
  const std::string metrics =
      "{\"step\":0,\"eval/accuracy\":0.125}\n{\"step\":5,\"eval/accuracy\":0.25}\n";
  const std::string ended = MakeRun("ended", metrics);
  std::filesystem::create_directories(ended + "/model");
  testing::WriteFile(ended + "/model/config.json", "{}");
  const std::string page = Page({ended, MakeRun("going-on", metrics)});
  EXPECT_THAT(page, HasSubstr("last evaluation during training: ended.</p>"));
  EXPECT_THAT(page, HasSubstr("Not ended: going-on."));
}

// A run without any value is named once: otherwise every curve would name it again.
TEST_F(ReportTest, NotesReachThePage) {
  const std::string page =
      Page({MakeRun("cut", Concat(kOneStep, "{\"step\":2,\"lo")), MakeRun("silent", "")});
  EXPECT_THAT(page, HasSubstr("cut: metrics.jsonl line 2 is only half written"));
  EXPECT_THAT(page, HasSubstr("silent: metrics.jsonl has no values to show yet."));
  EXPECT_THAT(page, Not(HasSubstr("Not recorded by silent")));
}

TEST_F(ReportTest, EveryColorOfARunIsDefinedForLightAndDarkPages) {
  const std::string css = kReportCss;
  std::set<std::string> colors;
  for (int i = 0; i < kNumRunColors; ++i) {
    EXPECT_THAT(css, HasSubstr(Concat(".r", i, " { --run: var(--run-", i, "); }")));
    const std::string name = Concat("--run-", i, ": #");
    size_t at = 0;
    for (const char* page : {"light", "dark"}) {
      at = css.find(name, at);
      ASSERT_NE(at, std::string::npos) << name << " on a " << page << " page";
      at += name.size();
      EXPECT_TRUE(colors.insert(Concat(page, css.substr(at, 6))).second) << name << ", " << page;
    }
  }
  EXPECT_THAT(Page({MakeRun("r", kOneStep)}), HasSubstr(Concat("\"colors\":", kNumRunColors)));
}

// Two objectives with two seeds each: a line, a color and a row for each objective.
TEST_F(ReportTest, SeedsOfASettingAreOneLine) {
  std::vector<std::string> runs;
  for (const char* objective : {"full", "ta_opd"}) {
    for (int seed = 0; seed < 2; ++seed) {
      const std::string run = MakeRun(Concat("seed-", seed, "/", objective),
                                      Concat("{\"step\":1,\"loss/mean\":", seed + 1, "}\n"));
      testing::WriteFile(
          run + "/config.yaml",
          Concat("run:\n  seed: ", seed, "\nobjective:\n  name: \"", objective, "\"\n"));
      testing::WriteFile(run + "/summary.json",
                         Concat("{\"student_accuracy_after\":0.", seed + 5, "}"));
      runs.push_back(run);
    }
  }
  const std::string page = Page(runs);
  EXPECT_THAT(page, HasSubstr("\"runs\":[\"full\",\"ta_opd\"]"));
  EXPECT_THAT(page, HasSubstr("<th scope=\"col\">objective.name</th>"));
  EXPECT_THAT(page, HasSubstr("data-value=\"0.55\"><b>55.0%</b> <small>50.0%&ndash;60.0%</small>"));
  EXPECT_THAT(page, HasSubstr("<span>seed-1/<wbr>ta_opd</span></th>"));
  EXPECT_THAT(page, HasSubstr("\"loss/mean\":{\"lines\":[[1.5,1.0,2.0],[1.5,1.0,2.0]],"
                              "\"runs\":[1.0,2.0,1.0,2.0]}"));
  EXPECT_THAT(page, HasSubstr("<path class=\"band\""));
  EXPECT_THAT(page, HasSubstr("lowest to highest seed"));
}

TEST_F(ReportTest, NothingThatARunSaysBecomesMarkup) {
  const std::string evil = "</script></style><script>alert(1)</script>";
  const std::string run =
      MakeRun("<img src=x>", "{\"step\":1,\"loss/mean\":1,\"" + evil + "\":2}\n");
  testing::WriteFile(run + "/config.yaml", "prompt: \"" + evil + "\"\n");
  testing::WriteFile(run + "/samples.jsonl", "{\"step\":0,\"when\":\"before\",\"prompt\":\"" +
                                                 evil + "\",\"response\":\"" + evil +
                                                 "\",\"answer\":\"" + evil + "\"}\n");
  const std::string page = Page({run, run});
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, HasSubstr("&lt;/script&gt;&lt;/style&gt;&lt;script&gt;alert(1)"));
}

TEST_F(ReportTest, ThePageNeedsNothingElseAndTheSameFilesGiveTheSameBytes) {
  const std::string run = MakeRun("r", "{\"step\":1,\"time\":5,\"loss/mean\":1}\n");
  const std::string page = Page({run});
  for (const char* text : {"default-src 'none'", kReportCss, kReportJs, "</html>"})
    EXPECT_THAT(page, HasSubstr(text));
  for (const char* text : {"src=", "href=", "url(", "@import"})
    EXPECT_THAT(page, Not(HasSubstr(text)));
  EXPECT_EQ(Page({run}), page);
}

TEST_F(ReportTest, GenerationsStandSideBySide) {
  const std::string run = MakeRun("r", kOneStep);
  testing::WriteFile(
      run + "/samples.jsonl",
      "{\"step\":0,\"when\":\"before\",\"prompt\":\"p1\",\"response\":\"b1\",\"correct\":false}\n"
      "{\"step\":0,\"when\":\"before\",\"prompt\":\"p2\",\"response\":\"b2\"}\n"
      "{\"step\":9,\"when\":\"after\",\"prompt\":\"p1\",\"response\":\"a1\",\"correct\":true}\n"
      "{\"step\":5,\"when\":\"eval\",\"prompt\":\"p1\",\"response\":\"e1\"}\n");
  const std::string page = Page({run});
  std::vector<size_t> places;
  for (const char* part : {">p1</pre>", ">b1</pre>", ">a1</pre>", ">p2</pre>",
                           "not recorded</p></div></div></article>", ">e1</pre>"}) {
    places.push_back(page.find(part));
    EXPECT_NE(places.back(), std::string::npos) << part;
  }
  EXPECT_TRUE(std::is_sorted(places.begin(), places.end()));
}

TEST_F(ReportTest, LongTextsAndManyPairsAreCutVisibly) {
  const std::string run = MakeRun("r", kOneStep);
  std::string samples;
  for (int i = 0; i < 30; ++i) {
    samples += Concat("{\"step\":0,\"when\":\"before\",\"prompt\":\"p", i, "\",\"response\":\"",
                      std::string(i == 0 ? 20100 : 3, 'x'), "\"}\n");
  }
  testing::WriteFile(run + "/samples.jsonl", samples);
  const std::string page = Page({run});
  EXPECT_THAT(page, HasSubstr("100 more bytes are in samples.jsonl"));
  EXPECT_THAT(page, HasSubstr("<summary>20 more</summary>"));
  EXPECT_THAT(page, HasSubstr("6 more are in samples.jsonl."));
}

TEST_F(ReportTest, ARunThatRecordedNothing) {
  const std::string page = Page({MakeRun("r", "")});
  EXPECT_THAT(page, HasSubstr("id=\"loss\""));
  EXPECT_THAT(page, HasSubstr("<p class=\"missing\">not recorded</p>"));
  EXPECT_THAT(page, Not(HasSubstr("<section aria-labelledby=\"samples\"")));
}

TEST_F(ReportTest, ErrorsLeaveAnOldReportAlone) {
  testing::WriteFile(dir_.File("report.html"), "old");
  const std::string run = MakeRun("r", "broken\n");
  EXPECT_ERROR(WriteReport({run}, dir_.File("report.html")), absl::StatusCode::kDataLoss,
               "metrics.jsonl:1");
  EXPECT_EQ(testing::ReadFile(dir_.File("report.html")), "old");
  EXPECT_ERROR(WriteReport({}, dir_.File("report.html")), absl::StatusCode::kInvalidArgument,
               "at least one");
  EXPECT_ERROR(WriteReport({dir_.File("absent")}, dir_.File("report.html")),
               absl::StatusCode::kNotFound, "absent/metrics.jsonl");
}

}  // namespace
}  // namespace taopd::report
