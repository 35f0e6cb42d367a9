// protobuf's header of map fields without the two members that it adds for ThreadSanitizer. The
// installed library is compiled without them, so a message with a map (google.protobuf.Struct)
// would have two layouts in one program.
#pragma once

#include <atomic>  // the standard library's own uses of the macro stay
#include <functional>
#include <memory>

#pragma push_macro("__SANITIZE_THREAD__")
#undef __SANITIZE_THREAD__
#include_next <google/protobuf/map_field.h>
#pragma pop_macro("__SANITIZE_THREAD__")
