#include "trainer/report/page/html.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace taopd::report {
namespace {

TEST(EscapeHtml, NothingOfTheTextIsMarkupOrABadByte) {
  EXPECT_EQ(EscapeHtml("</script><b a=\"x\" b='y'>&amp;"),
            "&lt;/script&gt;&lt;b a=&quot;x&quot; b=&#39;y&#39;&gt;&amp;amp;");
  EXPECT_EQ(EscapeHtml("a\n\t\xc3\xa4"), "a\n\t\xc3\xa4");
  EXPECT_EQ(EscapeHtml(std::string("a\0b\x1b\xff", 5)),
            "a\xef\xbf\xbd"
            "b\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(NameHtml, MayBreakBetweenWords) {
  EXPECT_EQ(NameHtml("seed-0/full, lr=<b>"), "seed-0/<wbr>full,<wbr> lr=&lt;b&gt;");
  EXPECT_EQ(NameHtml("a/"), "a/");
  EXPECT_EQ(NameHtml(""), "");
}

TEST(ScriptJson, NoTextEndsTheElement) {
  const nlohmann::ordered_json value = {{"name", "</script><!--\xff"}};
  const std::string text = ScriptJson(value);
  EXPECT_EQ(text.find('<'), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(text)["name"], "</script><!--\xef\xbf\xbd");
}

}  // namespace
}  // namespace taopd::report
