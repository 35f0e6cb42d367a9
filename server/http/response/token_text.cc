#include "server/http/response/token_text.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <vector>

#include "common/base/status.h"
#include "common/io/jsonl.h"
#include "common/wire/vllm_log_prob.h"

namespace taopd {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr size_t kMaxContextTokens = 4;

bool EndsIncomplete(const std::string& text) { return text.ends_with(kReplacement); }

}  // namespace

std::string TokenText::Decode(int32_t id, std::span<const int32_t> context) {
  if (tokenizer_ == nullptr) return "";
  if (const auto known = whole_.find(id); known != whole_.end()) return known->second;
  const std::string alone = tokenizer_->Decode({id}, /*skip_special_tokens=*/false);
  if (!EndsIncomplete(alone)) return whole_.emplace(id, alone).first->second;
  for (size_t count = 1; count <= std::min(kMaxContextTokens, context.size()); ++count) {
    std::vector<int32_t> ids(context.end() - static_cast<ptrdiff_t>(count), context.end());
    ids.push_back(id);
    const std::string with = tokenizer_->Decode(ids, /*skip_special_tokens=*/false);
    if (EndsIncomplete(with)) continue;
    // The tokens just before the id that are incomplete themselves have been reported as empty:
    // this one gets their text, too.
    do {
      ids.pop_back();
    } while (!ids.empty() &&
             EndsIncomplete(tokenizer_->Decode({ids.back()}, /*skip_special_tokens=*/false)));
    const std::string before = tokenizer_->Decode(ids, /*skip_special_tokens=*/false);
    if (with.starts_with(before)) return with.substr(before.size());
  }
  return "";
}

std::string TokenText::DecodedTokenJson(int32_t id, std::span<const int32_t> context) {
  if (tokenizer_ == nullptr) return "null";
  return JsonText(Decode(id, context));
}

std::string TokenText::Name(int32_t id, std::span<const int32_t> context) {
  if (tokenizer_ == nullptr || as_token_ids_) return Concat("token_id:", id);
  return Decode(id, context);
}

std::string TokenText::NameAlone(int32_t id) {
  if (tokenizer_ == nullptr || as_token_ids_) return Name(id, {});
  return tokenizer_->Decode({id}, /*skip_special_tokens=*/false);
}

void AppendLogprob(float value, std::string* out) {
  const double number = value == -std::numeric_limits<float>::infinity()
                            ? kVllmLogOfZero
                            : static_cast<double>(value);
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  *out += text;
  if (text.find_first_of(".e") == std::string_view::npos) *out += ".0";
}

}  // namespace taopd
