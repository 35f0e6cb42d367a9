#include "trainer/step/teacher_views.h"

#include <gtest/gtest.h>

#include <set>

#include "common/base/random.h"
#include "tests/support/byte_tokenizer.h"

namespace taopd::testing {
namespace {

// Two prompts with four rollouts each. A response that begins with 'r' is right.
class TeacherViewsTest : public ::testing::Test {
 protected:
  static constexpr int64_t kGroup = 4;

  TeacherViewsTest() : rollouts_(2 * kGroup) {
    options_.tokenizer = &tokenizer_;
    options_.is_correct = [](const PromptRecord&, const Rollout& rollout) {
      return rollout.response_ids[0] == 'r';
    };
    for (PromptRecord& prompt : prompts_) {
      prompt.teacher_prompt.has_sibling = true;
      prompt.teacher_prompt.text = "{sibling}?{sibling}!";
    }
  }
  // Makes the responses "r0", "w1", ... of the first prompt's grades; the second's are all wrong.
  TeacherViews Views(const std::string& grades) {
    std::vector<const PromptRecord*> prompts;
    for (int64_t i = 0; i < 2 * kGroup; ++i) {
      const char grade = i < kGroup ? grades[i] : 'w';
      rollouts_[i].response_ids = {grade, static_cast<int32_t>('0' + i)};
      prompts.push_back(&prompts_[i / kGroup]);
    }
    return TeacherViews(options_, prompts, kGroup);
  }
  std::string Text(const TeacherView& view) { return tokenizer_.Decode(view.prompt_ids, true); }

  ByteTokenizer tokenizer_;
  TeacherViewOptions options_;
  PromptRecord prompts_[2];
  std::vector<Rollout> rollouts_;
};

TEST_F(TeacherViewsTest, APromptOfTheRowIsKnownAtOnce) {
  prompts_[0].teacher_prompt = {"ab", {7, 8}, false, false};
  prompts_[1].teacher_prompt = {};
  TeacherViews views = Views("wwww");
  const std::vector<TeacherView> own = views.AddRollout(2, rollouts_[2]);
  ASSERT_EQ(own.size(), 1u);
  EXPECT_EQ(own[0].index, 2);
  EXPECT_EQ(own[0].prompt_ids, (std::vector<int32_t>{7, 8}));
  EXPECT_FALSE(own[0].is_missing);
  const std::vector<TeacherView> plain = views.AddRollout(5, rollouts_[5]);
  ASSERT_EQ(plain.size(), 1u);
  EXPECT_TRUE(plain[0].prompt_ids.empty());
  EXPECT_TRUE(plain[0].is_missing);
}

TEST_F(TeacherViewsTest, TheNextRightResponseStandsInAllItsPlaces) {
  TeacherViews views = Views("rwrw");
  EXPECT_TRUE(views.AddRollout(1, rollouts_[1]).empty());
  // 1 needs only 2. 2 itself needs 3.
  std::vector<TeacherView> certain = views.AddRollout(2, rollouts_[2]);
  ASSERT_EQ(certain.size(), 1u);
  EXPECT_EQ(certain[0].index, 1);
  EXPECT_EQ(Text(certain[0]), "r2?r2!");
  EXPECT_TRUE(views.AddRollout(3, rollouts_[3]).empty());
  certain = views.AddRollout(0, rollouts_[0]);
  ASSERT_EQ(certain.size(), 3u);
  EXPECT_EQ(Text(certain[0]), "r2?r2!");  // of 0
  EXPECT_EQ(Text(certain[1]), "r0?r0!");  // of 2
  EXPECT_EQ(Text(certain[2]), "r0?r0!");  // of 3
}

TEST_F(TeacherViewsTest, TheOnlyRightResponseHasNoSibling) {
  TeacherViews views = Views("wrww");
  std::set<int64_t> missing;
  for (int64_t i = 0; i < 2 * kGroup; ++i) {
    for (const TeacherView& view : views.AddRollout(i, rollouts_[i])) {
      if (view.is_missing) missing.insert(view.index);
      EXPECT_EQ(view.prompt_ids.empty(), view.is_missing);
    }
  }
  EXPECT_EQ(missing, (std::set<int64_t>{1, 4, 5, 6, 7}));
}

TEST_F(TeacherViewsTest, TheOrderOfArrivalChangesNothing) {
  std::vector<std::string> expected;
  RandomStream random(3);
  for (int trial = 0; trial < 50; ++trial) {
    TeacherViews views = Views("wrwr");
    std::vector<int64_t> order = {0, 1, 2, 3, 4, 5, 6, 7};
    random.Shuffle(&order);
    std::vector<std::string> texts(order.size(), "none");
    for (const int64_t i : order) {
      for (const TeacherView& view : views.AddRollout(i, rollouts_[i])) {
        EXPECT_EQ(texts[view.index], "none") << "a view is returned once";
        texts[view.index] = Text(view);
      }
    }
    if (trial == 0) expected = texts;
    EXPECT_EQ(texts, expected);
  }
  EXPECT_EQ(expected,
            (std::vector<std::string>{"r1?r1!", "r3?r3!", "r3?r3!", "r1?r1!", "", "", "", ""}));
}

TEST_F(TeacherViewsTest, AnOverlongPromptIsMissing) {
  options_.max_prompt_length = 5;
  TeacherViews views = Views("rrrr");
  views.AddRollout(0, rollouts_[0]);
  const std::vector<TeacherView> certain = views.AddRollout(1, rollouts_[1]);
  ASSERT_EQ(certain.size(), 1u);
  EXPECT_TRUE(certain[0].is_missing);
}

}  // namespace
}  // namespace taopd::testing
