// Comparing costs as much as the values are large, and a small expression can make a large one:
// what is compared is charged first.
#pragma once

#include "common/text/jinja/runtime/runtime.h"
#include "common/text/jinja/values/value.h"

namespace taopd::jinja {

// Steps for one comparison of `value` with any other.
void ChargeComparison(Runtime& runtime, const Value& value);

// dict.Find(key), charged.
const Value* FindKey(Runtime& runtime, const Dict& dict, const Value& key);
// Charges what comparing `key` with num_keys others costs.
void ChargeKeyComparisons(Runtime& runtime, const Value& key, size_t num_keys);

}  // namespace taopd::jinja
