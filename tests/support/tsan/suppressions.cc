// Suppresses reports from inside the installed libraries, whose atomics are not instrumented.
// race_top matches only the innermost frame, so a race in our code below a gRPC callback is still
// reported.
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libgrpc.so\n"
         "called_from_lib:libgrpc++.so\n"
         "called_from_lib:libgpr.so\n"
         "called_from_lib:libupb.so\n"
         "called_from_lib:libssl.so\n"
         "called_from_lib:libcrypto.so\n"
         "called_from_lib:libabsl_status.so\n"
         "called_from_lib:libabsl_strings.so\n"
         "called_from_lib:libabsl_cord.so\n"
         "called_from_lib:libabsl_cord_internal.so\n"
         "called_from_lib:libabsl_time.so\n"
         "called_from_lib:libabsl_time_zone.so\n"
         "race_top:grpc::\n"
         "race_top:grpc_\n"
         // The count of references of a status goes down in the library.
         "race:absl::*::Status::Unref\n"
         // So does that of an asynchronous logger, which every line that waits for its thread
         // holds.
         "race:spdlog::logger::~logger\n"
         "race:spdlog::details::thread_pool::process_next_msg_\n"
         // And that of a collective's state, in LibTorch.
         "race:c10d::\n"
         // So does that of the state that the threads of gRPC's pool share.
         "race:std::_Sp_counted_ptr_inplace<grpc_event_engine::\n";
}
