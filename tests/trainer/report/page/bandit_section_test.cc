// Tests of the bandit's figures and their contours.
#include "trainer/report/page/page.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/files.h"
#include "trainer/bandit/bandit_file.h"
#include "trainer/report/charts/contour.h"
#include "trainer/report/report.h"

namespace taopd::report {
namespace {

int NumOf(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Contour, LevelsLieInsideOfTheRange) {
  EXPECT_EQ(ContourLevels({{0.15, 3}, {1, 2}}), (std::vector<double>{0.2, 0.5, 1, 2}));
  EXPECT_TRUE(ContourLevels({{1, 1}, {1, 1}}).empty());
}

// A ramp from 0 to 2 over two cells: the level 0.5 crosses at a quarter of the width.
TEST(Contour, LinesAndBandsOfARamp) {
  const Grid ramp = {{0, 1, 2}, {0, 1, 2}};
  const ContourFrame frame = {.left = 0, .right = 100, .top = 0, .bottom = 50};
  EXPECT_EQ(ContourLine(ramp, 0.5, frame), "M25.0 50.0L25.0 0.0");
  EXPECT_EQ(ContourLine(ramp, 5, frame), "");
  // Cells have the means 0.5 and 1.5.
  EXPECT_EQ(
      ContourBands(ramp, {0.2, 1, 1.7}, frame),
      (std::vector<std::string>{"M0.0 50.0H100.0V0.0H0.0Z", "M50.0 50.0H100.0V0.0H50.0Z", ""}));
}

TEST(BanditSection, HasBothFiguresAndTheTable) {
  const bandit::Options options = {.steps = 500};
  const bandit::Result result =
      bandit::RunBandit({"full", "ta_opd", "normalized"}, options).value();
  const std::string html = RenderBandit(result, "bandit-1");
  EXPECT_EQ(NumOf(html, "<figure"), 2);
  EXPECT_EQ(NumOf(html, "<tr><th scope=\"row\">"), 3);
  for (const char* part :
       {"id=\"bandit-1-policies-title\"", "id=\"bandit-1-landscape-title\"", "class=\"contour\"",
        "class=\"level\"", "class=\"bars top\"", "ta_opd"}) {
    EXPECT_NE(html.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(html.find("nan"), std::string::npos);
  EXPECT_EQ(RenderBandit(result, "bandit-1"), html) << "the same file gives the same bytes";
}

TEST(BanditSection, NamesAreEscaped) {
  const bandit::Options options = {.steps = 1};
  bandit::Result result = bandit::RunBandit({"ta_opd"}, options).value();
  result.runs[0].objective = "<script>";
  EXPECT_EQ(RenderBandit(result, "b").find("<script"), std::string::npos);
}

TEST(Report, TakesBanditFilesInPlaceOfRuns) {
  const testing::TempDir dir;
  const bandit::Options options = {.steps = 100};
  ASSERT_TRUE(
      bandit::WriteResult(bandit::RunBandit({"ta_opd"}, options).value(), dir.File("b.json")).ok());
  ASSERT_TRUE(WriteReport({dir.File("b.json"), dir.File("b.json")}, dir.File("page.html")).ok());
  const std::string page = testing::ReadFile(dir.File("page.html"));
  EXPECT_NE(page.find("id=\"bandit-1\""), std::string::npos);
  EXPECT_NE(page.find("id=\"bandit-2\""), std::string::npos);
  EXPECT_EQ(page.find("not recorded"), std::string::npos) << "no run, no charts of runs";
  testing::WriteFile(dir.File("b.json"), "{}");
  const absl::Status status = WriteReport({dir.File("b.json")}, dir.File("page.html"));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("b.json: format is missing"), std::string::npos);
}

}  // namespace
}  // namespace taopd::report
