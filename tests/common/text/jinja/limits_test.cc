// Templates that would hang Python or exhaust its memory: each ends with an error, soon.
#include "common/text/jinja/limits.h"

#include <sys/resource.h>

#include <ctime>

#include "common/text/jinja/template.h"
#include "tests/support/mutation.h"
#include "tests/support/status_matchers.h"

namespace taopd::jinja {
namespace {

using testing::Repeated;

absl::StatusOr<Rendering> RenderText(
    const std::string& source,
    const nlohmann::ordered_json& context = nlohmann::ordered_json::object()) {
  TAOPD_ASSIGN_OR_RETURN(const Template parsed, Template::Parse(source));
  return parsed.Render(context);
}

// Measured in processor time, so that a busy machine does not count. Generous for sanitizers; the
// point is that it is not minutes.
constexpr double kMaxCpuSeconds = 30;

const std::string kLoop = "{% for i in range(99999) %}";
const std::string kEnd = "{% endfor %}";

std::vector<std::string> TemplatesThatTakeTime() {
  return {
      kLoop + kLoop + kLoop + kEnd + kEnd + kEnd,
      "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
      "{% set ns = namespace(x=range(99999)|list) %}" + kLoop + "{% set y = ns.x|sort %}" + kEnd,
      "{% set ns = namespace(x='a' * 1000000) %}" + kLoop + "{% set y = 'aab' in ns.x %}" + kEnd,
      "{% set x = range(99999)|list %}" + kLoop + "{% set y = x == x %}" + kEnd,
      "{% set x = range(99999)|unique|list %}",
      "{% set x = 'a' * 3000000 %}{{ x.rsplit('a' * 1500000 ~ 'b') }}",
  };
}

std::vector<std::string> TemplatesThatTakeMemory() {
  return {
      "{% set ns = namespace(x='aaaaaaaa') %}" + kLoop + "{% set ns.x = ns.x ~ ns.x %}" + kEnd,
      "{% set ns = namespace(x=[1]) %}" + kLoop + "{% set ns.x = ns.x + ns.x %}" + kEnd,
      "{{ 'abcdefgh' * 1000000000 }}",
      "{{ [1, 2] * 1000000000000 }}",
      // Products of size and count that overflow to small numbers in 64 bits.
      "{{ 'abcd' * 4611686018427387905 }}",
      "{{ [1] * 1152921504606846977 }}",
      "{{ ('x' * 100000).replace('', 'y' * 100000) }}",
      "{{ ('x' * 100000)|replace('x', 'y' * 100000) }}",
      "{{ ('a\n' * 1000000)|indent(10000) }}",
      "{{ 'x'|center(10000000000) }}",
      "{{ 'x'|truncate(9223372036854775807, leeway=9223372036854775807, end='') }}{{ 1 // 0 }}",
      "{{ 'x'|center(-9223372036854775807 - 1) }}{{ 1 // 0 }}",
      "{{ [1]|batch(1000000000000, 'x')|list }}",
      "{{ [1]|batch(2305843009213693953, 'x')|list }}",
      "{{ (' ' * 200000000)[::2] }}",
      "{{ ('a ' * 100000000).split() }}",
      "{{ ('a ' * 100000000).rsplit(' ') }}",
      "{{ ('\n' * 200000000).splitlines() }}",
      "{{ '%999999d' % 1 }}",
      "{{ range(1000000000000)|list }}",
      "{{ (range(99999)|list|string) * 99999 }}",
      kLoop + kLoop + "{{ 'x' * 1000 }}" + kEnd + kEnd,
      "{% set ns = namespace(x=[]) %}" + kLoop + "{% set ns.x = [ns.x] %}" + kEnd,
      "{% set ns = namespace(x={}) %}" + kLoop + "{% set ns.x = {'a': ns.x} %}" + kEnd,
      "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
      "{% set ns = namespace(x=1) %}" + kLoop + "{% set ns.x = namespace(x=ns.x) %}" + kEnd +
          "{{ ns }}",
  };
}

// Values nested through something other than a list, and comparisons of small expressions with
// large values.
std::vector<std::string> TemplatesOfDeepValues() {
  return {
      "{% set ns = namespace(x=[]) %}" + kLoop + "{% set ns.x = [ns.x.count] %}" + kEnd +
          "{{ 1 // 0 }}",
      "{% set ns = namespace(x=1) %}" + kLoop + "{% set ns.x = joiner(ns.x) %}" + kEnd +
          "{{ 1 // 0 }}",
      "{% set ns = namespace(x=1) %}" + kLoop + "{% set ns.x = cycler(ns.x) %}" + kEnd +
          "{{ 1 // 0 }}",
      "{% set ns = namespace(x=1) %}" + kLoop + "{% set ns.x = cycler(ns.x).next %}" + kEnd +
          "{{ 1 // 0 }}",
      "{% set ns = namespace(x=1) %}" + kLoop +
          "{% for i in [ns.x] %}{% set ns.x = loop %}{% endfor %}" + kEnd + "{{ 1 // 0 }}",
      "{% set ns = namespace(x=1) %}{% macro f(m) %}{% macro g() %}{% endmacro %}{% set ns.x = g "
      "%}{% endmacro %}" +
          kLoop + "{{ f(ns.x) }}" + kEnd + "{{ 1 // 0 }}",
      "{% set ns = namespace(a=(1,), b=(1,)) %}{% for i in range(60) %}{% set ns.a = (ns.a, ns.a) "
      "%}"
      "{% set ns.b = (ns.b, ns.b) %}{% endfor %}{{ {ns.a: 1, ns.b: 2} }}",
      "{% set ns = namespace(a=(1,), b=(1,)) %}{% for i in range(60) %}{% set ns.a = (ns.a, ns.a) "
      "%}"
      "{% set ns.b = (ns.b, ns.b) %}{% endfor %}{{ {1: 1}.get(ns.a) }}{{ ns.a in [ns.b] }}",
      "{% set ns = namespace(a=(1,)) %}{% for i in range(60) %}{% set ns.a = (ns.a, ns.a) %}{% "
      "endfor %}{{ ns.a }}",
  };
}

std::vector<std::string> TemplatesThatTakeStack() {
  return {
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(n=f()) %}{% endmacro %}{{ f() }}",
      "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      Repeated("(", 100000) + "1",
      "{{ " + Repeated("(", 100000) + "1" + Repeated(")", 100000) + " }}",
      "{{ " + Repeated("[", 100000) + Repeated("]", 100000) + " }}",
      "{{ 1" + Repeated(" + 1", 100000) + " }}",
      "{{ x" + Repeated(".a", 100000) + " }}",
      "{{ x" + Repeated("|list", 100000) + " }}",
      "{{ " + Repeated("not ", 100000) + "x }}",
      "{{ " + Repeated("-", 100000) + "1 }}",
      "{{ " + Repeated("1 if x else ", 60000) + "1 }}",
      "{{ " + Repeated("f(", 100000) + Repeated(")", 100000) + " }}",
      Repeated("{% if x %}", 60000) + Repeated("{% endif %}", 60000),
      "{% if x %}" + Repeated("{% elif x %}", 60000) + "{% endif %}",
      Repeated("{% if x %}" + Repeated("{% elif x %}", 150), 150) + Repeated("{% endif %}", 150),
      "{{ 'a'|map(" + Repeated("'map', ", 100000) + "'upper')|list }}",
      "{% set " + Repeated("(", 100000) + "a" + Repeated(")", 100000) + " = 1 %}",
  };
}

// Templates that do not start with "(" must be refused.
void ExpectEnd(const std::vector<std::string>& templates) {
  for (const std::string& source : templates) {
    const std::clock_t begin = std::clock();
    const auto rendering = RenderText(source);
    const std::string shown = source.substr(0, 100);
    EXPECT_EQ(rendering.ok(), source[0] == '(') << shown;
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, kMaxCpuSeconds) << shown;
    EXPECT_LT(rendering.status().message().size(), 1000u) << shown;
  }
}

// Arguments that functions of the C and C++ libraries do not take.
std::vector<std::string> TemplatesWithForeignNumbers() {
  return {
      "{{ '{\u0663}'.format(1, 2, 3, 4) }}",
      "{{ [[1]]|map(attribute='\u0663')|sum }}",
      "{{ '%d' % 1e300 }}",
      "{{ '%i' % -1e19 }}",
      "{{ '%d' % (1e308 * 10) }}",
      "{{ '%x' % -255 }}",
  };
}

TEST(JinjaLimits, HostileTemplatesEnd) {
  ExpectEnd(TemplatesWithForeignNumbers());
  ExpectEnd(TemplatesThatTakeTime());
  ExpectEnd(TemplatesThatTakeMemory());
  ExpectEnd(TemplatesOfDeepValues());
  ExpectEnd(TemplatesThatTakeStack());
  ExpectEnd({std::string(static_cast<size_t>(kMaxTemplateBytes) + 1, 'x')});
}

// The limit applies not only to the value that a filter returns, but also to the intermediate ones.
TEST(JinjaLimits, JoinIsChargedWhileItGrows) {
  EXPECT_ERROR(RenderText("{{ range(100000)|join('x' * 40000) }}"),
               absl::StatusCode::kResourceExhausted, "limit");
  rusage usage{};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  // The whole text would be 4 GB; the limit is half a GiB, or twice that while a string grows.
  EXPECT_LT(usage.ru_maxrss, int64_t{5} << 19) << "KiB";
}

TEST(JinjaLimits, MessagesNameTheLimit) {
  EXPECT_ERROR(
      RenderText("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
      absl::StatusCode::kResourceExhausted, "steps than the limit of 20000000");
  EXPECT_ERROR(RenderText("{{ range(100001) }}"), absl::StatusCode::kResourceExhausted,
               "line 1, column 9: range of more elements than the limit of 100000");
  EXPECT_ERROR(RenderText("\n {% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
               absl::StatusCode::kResourceExhausted, "line 2, column ");
}

// Real templates stay far below the limits.
TEST(JinjaLimits, LongConversationsPass) {
  nlohmann::ordered_json context;
  for (int i = 0; i < 20000; ++i) {
    context["messages"].push_back({{"role", "user"}, {"content", std::string(200, 'x')}});
  }
  const auto rendering = RenderText(
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m['content'] | trim + "
      "'<|im_end|>\n' }}{% endfor %}",
      context);
  ASSERT_OK(rendering);
  EXPECT_EQ(rendering->text.size(), 20000u * (12 + 5 + 200 + 11));
}

// Values that refer to each other in cycles are freed with the rendering (the leak checker verifies
// it).
TEST(JinjaLimits, CirclesAreFreed) {
  EXPECT_OK(
      RenderText("{% set ns = namespace() %}{% set ns.x = [ns] %}{% macro f() %}{% endmacro %}"
                 "{% set ns.f = f %}{% for i in [1] recursive %}{% set ns.l = loop %}{{ "
                 "loop.changed(loop) }}{% endfor %}"));
}

}  // namespace
}  // namespace taopd::jinja
