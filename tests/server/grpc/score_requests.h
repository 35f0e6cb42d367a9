// Score requests that the engines of fake_engine.h accept.
#pragma once

#include <string>

#include "proto/taopd/v1/teacher.pb.h"

namespace taopd::testing {

// Six tokens, of which the last four are scored with their top 3.
inline v1::ScoreRequest MakeScoreRequest(const std::string& id = "r1") {
  v1::ScoreRequest request;
  request.set_request_id(id);
  for (uint32_t token : {3, 1, 4, 1, 5, 9}) request.add_token_ids(token);
  request.set_score_start(2);
  request.set_top_k(3);
  return request;
}

}  // namespace taopd::testing
