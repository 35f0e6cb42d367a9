// The bound of a message's memory against the memory that protobuf really takes.
#include "server/grpc/calls/parsed_size.h"

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/unknown_field_set.h>
#include <malloc.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "proto/taopd/v1/teacher.pb.h"
#include "proto/vllm/control.pb.h"
#include "proto/vllm/engine.pb.h"
#include "proto/vllm/inference.pb.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using google::protobuf::Message;

constexpr int64_t kNoLimit = int64_t{1} << 40;
// Other threads of the test binary may hold some memory, and a small message has little itself.
constexpr int64_t kSlackBytes = 8 << 10;
// The factor by which the bound of a large message may be too high.
constexpr int64_t kMaxRatio = 4;
// gRPC gives a message in pieces.
constexpr int kPieceBytes = 1000;

absl::StatusOr<int64_t> SizeOf(const Message& type, const std::string& bytes,
                               int64_t max_bytes = kNoLimit) {
  google::protobuf::io::ArrayInputStream input(bytes.data(), static_cast<int>(bytes.size()),
                                               kPieceBytes);
  return ParsedSize(*type.GetDescriptor(), static_cast<int>(bytes.size()), max_bytes, &input);
}

bool Parse(const std::string& bytes, Message* message) {
  google::protobuf::io::ArrayInputStream input(bytes.data(), static_cast<int>(bytes.size()),
                                               kPieceBytes);
  return message->ParseFromZeroCopyStream(&input);
}

int64_t HeapBytes() {
  const auto info = ::mallinfo2();  // 0 with a sanitizer's heap
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

struct Sample {
  std::string name;
  std::shared_ptr<const Message> type;
  std::string bytes;
};

template <typename Type>
Sample Of(const std::string& name, const std::function<void(Type*)>& fill) {
  Type message;
  fill(&message);
  return {name, std::make_shared<Type>(), message.SerializeAsString()};
}

template <typename Type>
Sample Repeated(const std::string& name, const std::string& element, int count) {
  Sample sample{name, std::make_shared<Type>(), {}};
  for (int i = 0; i < count; ++i) sample.bytes += element;
  return sample;
}

std::vector<Sample> KnownFields() {
  using google::protobuf::Struct;
  return {
      Of<v1::ScoreRequest>("nothing", [](auto*) {}),
      Of<v1::ScoreRequest>("packed fixed32",
                           [](auto* m) { m->mutable_token_ids()->Resize(100'000, 7); }),
      Repeated<v1::ScoreRequest>("fixed32 one by one", std::string("\x15\x01\0\0\0", 5), 10'000),
      Of<v1::ScoreRequest>("a text", [](auto* m) { m->set_request_id(std::string(1 << 20, 'x')); }),
      Of<vllm::TokenIds>("packed varints",
                         [](auto* m) {
                           for (uint32_t i = 0; i < 100'000; ++i) m->add_ids(i * i);
                         }),
      Repeated<vllm::TokenIds>("varints one by one", std::string("\x08\x01", 2), 10'000),
      Repeated<vllm::AbortRequest>("empty texts", std::string("\x0a\0", 2), 100'000),
      Of<vllm::AbortRequest>("texts of all lengths",
                             [](auto* m) {
                               for (size_t i = 0; i < 4000; ++i)
                                 m->add_request_ids(std::string(i % 200, 'x'));
                             }),
      Of<vllm::GenerateRequest>("messages",
                                [](auto* m) {
                                  for (int i = 0; i < 5000; ++i) m->add_media()->set_uuid("u");
                                }),
      Of<v1::GenerateRequest>("a map of numbers",
                              [](auto* m) {
                                auto& map = *m->mutable_sampling()->mutable_logit_bias();
                                for (uint32_t i = 0; i < 5000; ++i) map[i * 977] = 1.0f;
                              }),
      Of<Struct>("a map of messages",
                 [](auto* m) {
                   for (int i = 0; i < 2000; ++i)
                     (*m->mutable_fields())[Concat("key ", i)].set_number_value(i);
                 }),
      Of<Struct>("arrays in arrays",
                 [](auto* m) {
                   auto* list = (*m->mutable_fields())["k"].mutable_list_value();
                   for (int i = 0; i < 1000; ++i)
                     list->add_values()->mutable_list_value()->add_values()->set_bool_value(true);
                 }),
  };
}

std::vector<Sample> UnknownFields() {
  return {
      Repeated<v1::ScoreRequest>("varints", std::string("\x70\0", 2), 100'000),
      Repeated<v1::GetTeacherInfoRequest>("empty texts", std::string("\x72\0", 2), 100'000),
      Repeated<v1::ScoreRequest>("texts", std::string("\x72\x10 sixteen letters", 18), 10'000),
      Repeated<v1::ScoreRequest>("fixed32", std::string("\x75\0\0\0\0", 5), 10'000),
      Repeated<v1::ScoreRequest>("fixed64", std::string("\x71\0\0\0\0\0\0\0\0", 9), 10'000),
      Repeated<v1::ScoreRequest>("groups", "\x73\x74", 50'000),
      Repeated<v1::ScoreRequest>("groups in groups", std::string("\x73\x73\x70\0\x74\x74", 6),
                                 9000),
      // A request_id that is a number, and token_ids that are an empty group.
      Repeated<v1::ScoreRequest>("known, but of another form", std::string("\x08\0\x13\x14", 4),
                                 20'000),
      Repeated<vllm::GenerateRequest>("one in each message", std::string("\x72\x03\x98\x06\0", 5),
                                      20'000),
      // The key 1, a value of 0, and a text that the entry does not have.
      Repeated<v1::SamplingOptions>("in a map",
                                    std::string("\x42\x09\x08\x01\x15\0\0\0\0\x1a\0", 11), 10'000),
  };
}

std::vector<Sample> AllSamples() {
  std::vector<Sample> samples = KnownFields();
  for (Sample& sample : UnknownFields()) samples.push_back(std::move(sample));
  return samples;
}

TEST(ParsedSizeTest, BoundsWhatProtobufTakes) {
  for (const Sample& sample : AllSamples()) {
    SCOPED_TRACE(Concat(sample.type->GetTypeName(), ": ", sample.name));
    ASSERT_OK_AND_ASSIGN(const int64_t bound, SizeOf(*sample.type, sample.bytes));
    const int64_t before = HeapBytes();
    const std::unique_ptr<Message> message(sample.type->New());
    ASSERT_TRUE(Parse(sample.bytes, message.get()));
    const int64_t taken = HeapBytes() - before;
    const int64_t counted = static_cast<int64_t>(message->SpaceUsedLong());
    EXPECT_GE(bound, counted);
    EXPECT_GE(bound + kSlackBytes, taken);
    // Entries of one key take the place of each other.
    if (sample.name != "in a map") {
      EXPECT_LE(bound, kMaxRatio * counted + kSlackBytes);
    }
  }
}

// A bound that is not reached is not a refusal; one byte less is one.
TEST(ParsedSizeTest, TheLimitIsExactAndNamed) {
  for (const Sample& sample : AllSamples()) {
    SCOPED_TRACE(Concat(sample.type->GetTypeName(), ": ", sample.name));
    ASSERT_OK_AND_ASSIGN(const int64_t bound, SizeOf(*sample.type, sample.bytes));
    EXPECT_OK(SizeOf(*sample.type, sample.bytes, bound));
    EXPECT_ERROR(SizeOf(*sample.type, sample.bytes, bound - 1), kInvalidArgument,
                 Concat(sample.type->GetTypeName(), " of ", sample.bytes.size(),
                        " bytes would take more than ", bound - 1, " bytes of memory, the limit"));
  }
}

TEST(ParsedSizeTest, MalformedBytesAreRefused) {
  const std::vector<std::string> cases = {
      std::string("\0", 1),                            // the tag 0
      std::string("\x02\0", 2),                        // field 0
      "\x0a",                                          // no length
      "\x0a\x05xy",                                    // a text that breaks off
      std::string("\x12\x08\0\0", 4),                  // an array that breaks off
      std::string("\x32\x02\x08", 3),                  // a message that breaks off
      std::string("\x32\x05\x08\x01", 4),              // a message that is longer than the bytes
      std::string("\x32\x01\x08\x01", 4),              // a number that is longer than its message
      "\x32\x02\x0a\x02",                              // a text that is longer than its message
      "\x0a\xff\xff\xff\xff\x7f",                      // a length beyond 31 bits
      "\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",  // a number without an end
      "\x1f",                                          // no such forms
      "\x1e",                                          //
      "\x74",                                          // the end of no group
      "\x73",                                          // a group without an end
      "\x73\x7c",                                      // the end of another group
      std::string("\x15\0\0", 3),                      // numbers that break off
      std::string("\x71\0\0", 3),                      //
  };
  for (const std::string& bytes : cases) {
    SCOPED_TRACE(::testing::PrintToString(bytes));
    v1::ScoreRequest message;
    EXPECT_FALSE(Parse(bytes, &message));
    EXPECT_ERROR(SizeOf(message, bytes), kInvalidArgument,
                 Concat("taopd.v1.ScoreRequest of ", bytes.size(), " bytes is malformed"));
  }
}

// Messages may be as deep as protobuf allows, and no deeper.
TEST(ParsedSizeTest, DepthIsLimited) {
  for (const int depth : {1, 50, 100, 101, 5000}) {
    SCOPED_TRACE(depth);
    const std::string groups = std::string(depth, '\x73') + std::string(depth, '\x74');
    std::string lists;  // the lists of google.protobuf.Value, two messages each
    for (int i = 0; i < depth / 2; ++i) {
      for (const char tag : {'\x0a', '\x32'}) {
        std::string length;
        for (size_t rest = lists.size(); length.empty() || rest > 0; rest >>= 7)
          length += static_cast<char>((rest & 0x7f) | (rest > 0x7f ? 0x80 : 0));
        lists = tag + length + lists;
      }
    }
    const google::protobuf::Value value;
    for (const auto& [type, bytes] :
         {std::pair<const Message*, std::string>{&v1::ScoreRequest::default_instance(), groups},
          {&value, lists}}) {
      const std::unique_ptr<Message> message(type->New());
      EXPECT_EQ(SizeOf(*type, bytes).ok(), Parse(bytes, message.get()));
    }
    if (depth > 101) {
      EXPECT_ERROR(SizeOf(v1::ScoreRequest(), groups), kInvalidArgument,
                   "nested more than 100 levels deep, the limit");
    }
  }
}

// Nothing that protobuf parses is refused, and nothing that it parses takes more than was said.
TEST(ParsedSizeTest, AgreesWithProtobufOnDamagedMessages) {
  auto* const printed = google::protobuf::SetLogHandler(nullptr);
  std::vector<Sample> samples;
  for (Sample& sample : AllSamples()) {
    sample.bytes.resize(std::min<size_t>(sample.bytes.size(), 60));
    samples.push_back(std::move(sample));
  }
  std::mt19937 random(1);
  int num_parsed = 0;
  for (int i = 0; i < 40'000; ++i) {
    const Sample& sample = samples[random() % samples.size()];
    std::string bytes = sample.bytes + samples[random() % samples.size()].bytes;
    for (uint32_t n = random() % 4; n > 0 && !bytes.empty(); --n)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    const std::unique_ptr<Message> message(sample.type->New());
    const absl::StatusOr<int64_t> bound = SizeOf(*sample.type, bytes);
    if (!Parse(bytes, message.get())) continue;
    ++num_parsed;
    ASSERT_TRUE(bound.ok()) << bound.status() << ::testing::PrintToString(bytes);
    ASSERT_GE(*bound, static_cast<int64_t>(message->SpaceUsedLong()));
  }
  EXPECT_GT(num_parsed, 4000);
  google::protobuf::SetLogHandler(printed);
}

}  // namespace
}  // namespace taopd::testing
