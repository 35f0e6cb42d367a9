// format % values. Supports %s and %r without options, %d %i %x %X %f %e %g with width and
// precision, and %%.
#include <cstdio>
#include <string>
#include <string_view>

#include "common/text/jinja/error.h"
#include "common/text/jinja/runtime/runtime.h"
#include "common/text/jinja/values/format.h"

namespace taopd::jinja {
namespace {

// A conversion such as %(key)-6.2f.
struct Spec {
  const Value* named = nullptr;  // the value of the key; null without a key
  std::string options = "%";     // with flags, width and precision, as printf reads them
  char kind = 0;
};

// Reads the conversion whose % is before text[*i]. Leaves *i at its last character.
Spec ReadSpec(const std::string& text, const Dict* named, size_t* i) {
  Spec spec;
  if (*i < text.size() && text[*i] == '(' && named != nullptr) {
    const size_t close = text.find(')', *i);
    if (close == std::string::npos) Fail("incomplete format key");
    const std::string_view key = std::string_view(text).substr(*i + 1, close - *i - 1);
    spec.named = named->Find(key);
    if (spec.named == nullptr) Fail("format key '", key, "' is missing");
    *i = close + 1;
  }
  constexpr size_t kMaxOptions = 6;  // keeps widths small
  while (*i < text.size() &&
         std::string_view("0123456789.-+ #").find(text[*i]) != std::string_view::npos) {
    spec.options += text[(*i)++];
  }
  if (*i >= text.size() || spec.options.size() > kMaxOptions)
    Fail("incomplete or unsupported format");
  spec.kind = text[*i];
  return spec;
}

// Returns the number that %d, %i, %x or %X shows of a value.
int64_t FormattedInteger(const Value& value, char kind) {
  const bool is_hex = kind == 'x' || kind == 'X';
  const double* const number = is_hex ? nullptr : value.As<double>();
  const std::optional<int64_t> integer =
      number != nullptr ? TruncateFloat(*number) : ToInteger(value, "format argument");
  if (!integer) Fail("format %", kind, ": the number has more than 63 bits");
  // printf would write the two's complement, and Python writes the sign.
  if (is_hex && *integer < 0) Fail("format %", kind, " of a negative number is not supported");
  return *integer;
}

template <typename Number>
std::string Print(const std::string& printf_format, Number number) {
  char buffer[16384];
  const int size = std::snprintf(buffer, sizeof(buffer), printf_format.c_str(), number);
  if (size >= static_cast<int>(sizeof(buffer))) Fail("format ", printf_format, " is too wide");
  return std::string(buffer, static_cast<size_t>(size));
}

std::string FormatOne(Runtime& runtime, const Spec& spec, const Value& value) {
  switch (const char kind = spec.kind) {
    case 's':
    case 'r': {
      std::string shown = kind == 's' ? ToString(runtime, value) : Repr(runtime, value);
      if (spec.options != "%") Fail("format ", spec.options, kind, " is not supported");
      return shown;
    }
    case 'd':
    case 'i':
    case 'x':
    case 'X':
      return Print(spec.options + (kind == 'x'   ? "llx"
                                   : kind == 'X' ? "llX"
                                                 : "lld"),
                   static_cast<long long>(FormattedInteger(value, kind)));
    case 'f':
    case 'g':
    case 'e':
      if (!IsNumber(value)) Fail("must be real number, not ", TypeName(value));
      return Print(spec.options + kind, ToDouble(value));
    default:
      Fail("unsupported format character '", kind, "'");
  }
}

}  // namespace

Value FormatPercent(Runtime& runtime, const Text& format, const std::vector<Value>& values,
                    const Dict* named) {
  const std::string& text = format.bytes;
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (++i < text.size() && text[i] == '%') {
      out += '%';
      continue;
    }
    const Spec spec = ReadSpec(text, named, &i);
    if (spec.named == nullptr && next >= values.size())
      Fail("not enough arguments for format string");
    out += FormatOne(runtime, spec, spec.named != nullptr ? *spec.named : values[next++]);
  }
  if (named == nullptr && next < values.size())
    Fail("not all arguments converted during string formatting");
  return runtime.MakeText(std::move(out), format.is_safe);
}

}  // namespace taopd::jinja
