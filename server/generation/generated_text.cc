#include "server/generation/generated_text.h"

#include <algorithm>

namespace taopd {
namespace {

bool IsStopId(int32_t id, const GenerationRequest& request) {
  const std::vector<int32_t>& stop_ids = request.sampling.stop_token_ids;
  return std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end();
}

// Appends the last token of a choice, which may be a stop id. A stop id is not part of the text
// unless include_stop_str_in_output is true. `stopped` tells whether the choice has ended with
// kStop.
void PushLast(int32_t id, bool stopped, const GenerationRequest& request, GeneratedText* text) {
  const bool keeps = request.include_stop_str_in_output;
  if (stopped && !keeps && IsStopId(id, request)) return;
  GeneratedText with_last = *text;
  const bool stop_string = with_last.Push(id);
  // If it stopped without a stop string or a stop id, the last id is an end-of-sequence id.
  if (!stopped || stop_string || keeps) text->Push(id);
}

}  // namespace

bool GeneratedText::Push(int32_t id) {
  incomplete_ += decoder_.Push(id);
  const bool may_stop = ++num_tokens_ > min_tokens_;
  // A text that ends with U+FFFD is taken to be incomplete, as in vLLM.
  if (decoder_.is_holding() || incomplete_.ends_with("\xEF\xBF\xBD")) {
    return matcher_.Append("", may_stop);
  }
  const bool stops = matcher_.Append(incomplete_, may_stop);
  incomplete_.clear();
  return stops;
}

bool EndsWithStopToken(const GeneratedTokens& generated, const GenerationRequest& request) {
  return generated.finish == FinishReason::kStop && IsStopId(generated.ids.back(), request);
}

std::string StreamedChoice::Add(const GeneratedTokens& tokens, bool is_last) {
  const std::vector<int32_t>& new_ids = tokens.ids;
  ids_.insert(ids_.end(), new_ids.begin(), new_ids.end());
  if (!text_) return "";
  for (size_t i = 0; i < new_ids.size(); ++i) {
    if (text_->stop_string()) break;  // tokens after a stop string have no text
    if (is_last && i + 1 == new_ids.size()) {
      PushLast(new_ids[i], tokens.finish == FinishReason::kStop, request_, &*text_);
    } else {
      text_->Push(new_ids[i]);
    }
  }
  const size_t end = is_last ? text_->text().size() : text_->num_streamable();
  if (end <= num_sent_bytes_) return "";
  std::string piece = text_->text().substr(num_sent_bytes_, end - num_sent_bytes_);
  num_sent_bytes_ = end;
  return piece;
}

}  // namespace taopd
