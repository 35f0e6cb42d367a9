#include "server/generation/streamed_choice.h"

namespace taopd {

std::string StreamedChoice::Add(const ChoiceUpdate& update) {
  const std::vector<int32_t>& new_ids = update.tokens.ids;
  ids_.insert(ids_.end(), new_ids.begin(), new_ids.end());
  if (!text_) return "";
  for (size_t i = 0; i < new_ids.size(); ++i) {
    if (text_->stop_string()) break;  // tokens after a stop string have no text
    if (update.is_last && i + 1 == new_ids.size()) {
      PushLast(new_ids[i], update.tokens.finish == FinishReason::kStop, request_, &*text_);
    } else {
      text_->Push(new_ids[i]);
    }
  }
  const size_t end = update.is_last ? text_->text().size() : text_->num_streamable();
  if (end <= num_sent_bytes_) return "";
  std::string piece = text_->text().substr(num_sent_bytes_, end - num_sent_bytes_);
  num_sent_bytes_ = end;
  return piece;
}

}  // namespace taopd
