#include "server/serving/excerpt.h"

#include "common/base/status.h"

namespace taopd {

std::string Excerpt(std::string_view text) {
  if (text.size() <= kMaxExcerptBytes) return std::string(text);
  size_t end = kMaxExcerptBytes;
  // Do not cut a UTF-8 character, which has at most four bytes.
  while (end > kMaxExcerptBytes - 4 && (text[end] & 0xc0) == 0x80) --end;
  return Concat(text.substr(0, end), "... (", text.size(), " bytes)");
}

}  // namespace taopd
