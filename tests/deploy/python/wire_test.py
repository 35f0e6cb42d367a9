"""deploy/python's messages against proto/taopd/v1/teacher.proto and protobuf's Python package."""

import pathlib
import random
import tempfile
import unittest

import packages
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from taopd import connection, wire

FILE = "taopd/v1/teacher.proto"
Field = descriptor_pb2.FieldDescriptorProto
SCALARS = {Field.TYPE_STRING: "string", Field.TYPE_BOOL: "bool", Field.TYPE_UINT32: "uint32", Field.TYPE_UINT64: "uint64",
           Field.TYPE_INT32: "int32", Field.TYPE_ENUM: "int32", Field.TYPE_FLOAT: "float", Field.TYPE_FIXED32: "fixed32"}


def read_proto():
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, "set")
        if protoc.main(["protoc", f"-I{packages.ROOT / 'proto'}", f"--descriptor_set_out={path}", FILE]) != 0:
            raise RuntimeError("protoc failed")
        return descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file[0]


PROTO = read_proto()
POOL = descriptor_pool.DescriptorPool()
POOL.Add(PROTO)


def protobuf(message):
    """protobuf's class of a message."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"taopd.v1.{message}"))


def kind_of(field, message):
    if field.type == Field.TYPE_MESSAGE:
        name = field.type_name.split(".")[-1]
        is_map = any(nested.name == name and nested.options.map_entry for nested in message.nested_type)
        return "map" if is_map else name
    return SCALARS[field.type] + ("[]" if field.label == Field.LABEL_REPEATED else "")


def random_values(message, generator):
    """A value for every field of a message, as encode takes it and as decode returns it."""
    values = {}
    for name, kind in wire.MESSAGES[message].values():
        if kind.endswith("[]"):
            count = generator.choice((0, 1, 2, 33, 300))
            integers = [generator.choice((0, 1, 127, 128, 2**31 - 1)) for _ in range(count)]
            values[name] = (np.array(integers, wire.ARRAYS[kind]) if kind == "fixed32[]" else
                            np.array(integers, "<f4") / 3 if kind == "float[]" else integers)
        elif kind == "map":
            values[name] = {generator.randrange(2**32): 0.5 for _ in range(3)}
        elif kind in wire.MESSAGES:
            values[name] = random_values(kind, generator)
        else:
            values[name] = {"string": generator.choice(("", "x" * 200)), "bool": generator.random() < 0.5, "float": 0.25,
                            "int32": generator.choice((-1, -2**31, 2**31 - 1, 0)), "uint64": 2**64 - 1,
                            "uint32": generator.choice((0, 1, 2**32 - 1))}[kind]
    if message == "ScoreStreamResponse":
        values[generator.choice(("response", "error"))] = None  # a oneof
    return values


class WireTest(unittest.TestCase):
    maxDiff = None

    def assert_equal_values(self, message, ours, protobuf_message):
        for name, kind in wire.MESSAGES[message].values():
            theirs = getattr(protobuf_message, name)
            if kind.endswith("[]"):
                self.assertEqual(list(ours[name]), list(theirs), f"{message}.{name}")
            elif kind == "map":
                self.assertEqual(ours[name], dict(theirs))
            elif kind in wire.MESSAGES:
                self.assertEqual(ours[name] is not None, protobuf_message.HasField(name), f"{message}.{name}")
                if ours[name] is not None:
                    self.assert_equal_values(kind, ours[name], theirs)
            else:
                self.assertEqual(ours[name], theirs, f"{message}.{name}")

    def test_table_is_the_proto_file(self):
        self.assertEqual({message.name: {field.number: (field.name, kind_of(field, message)) for field in message.field}
                          for message in PROTO.message_type}, wire.MESSAGES)

    def test_methods_are_the_proto_file(self):
        [service] = PROTO.service
        self.assertEqual(f"/{PROTO.package}.{service.name}/", connection.SERVICE)
        self.assertEqual({method.name: method.output_type.split(".")[-1] for method in service.method}, connection.REPLIES)

    def test_protobuf_reads_what_we_write(self):
        generator = random.Random(1)
        for message in wire.MESSAGES:
            for _ in range(20):
                values = random_values(message, generator)
                self.assert_equal_values(message, values, protobuf(message).FromString(wire.encode(message, values)))

    def test_we_read_what_protobuf_writes(self):
        generator = random.Random(2)
        for message in (name for name in wire.MESSAGES if name != "GenerateRequest" and name != "SamplingOptions"):
            for _ in range(20):
                theirs = protobuf(message).FromString(wire.encode(message, random_values(message, generator)))
                self.assert_equal_values(message, wire.decode(message, theirs.SerializeToString()), theirs)
            self.assert_equal_values(message, wire.decode(message, b""), protobuf(message)())

    def test_a_zero_is_sent(self):
        """Fields with presence mean something else when they are absent: temperature 0 is greedy."""
        sampling = protobuf("GenerateRequest").FromString(
            wire.encode("GenerateRequest", {"sampling": {"temperature": 0.0, "top_p": None}})).sampling
        self.assertEqual((sampling.HasField("temperature"), sampling.HasField("top_p")), (True, False))

    def test_arrays_in_pieces(self):
        """Parsers must accept packed fields in several pieces, and numbers that are not packed."""
        packed = wire.encode("ScoreResponse", {"ids": [1, 2]})
        single = bytes([4 << 3 | 5]) + (7).to_bytes(4, "little")
        decoded = wire.decode("ScoreResponse", packed + single + packed)
        self.assertEqual(decoded["ids"].tolist(), [1, 2, 7, 1, 2])
        varints = bytes([13 << 3, 200, 1, 13 << 3 | 2, 2, 3, 4])
        self.assertEqual(wire.decode("GetTeacherInfoResponse", varints)["eos_token_ids"], [200, 3, 4])

    def test_arrays_belong_to_the_caller(self):
        for length in range(8):  # another alignment for each
            values = {"request_id": "x" * length, "log_tail": np.arange(9, dtype="<f4")}
            array = wire.decode("ScoreResponse", wire.encode("ScoreResponse", values))["log_tail"]
            self.assertTrue(array.flags.aligned and array.flags.writeable)
            self.assertIsNone(array.base)

    def test_unknown_fields_are_skipped(self):
        unknown = b"".join(bytes([0xF8 | kind, 0x07]) + value for kind, value in
                           ((0, b"\x96\x01"), (1, bytes(8)), (2, b"\x03abc"), (5, bytes(4))))
        self.assertEqual(wire.decode("ScoreError", unknown + b"\x08\x05" + unknown), {"code": 5, "message": ""})

    def test_damaged_messages(self):
        """Every cut and every changed byte gives a message or a WireError (a text that is not UTF-8 is one, too)."""
        data = wire.encode("ScoreStreamResponse", {"request_id": "r", "response": {"revision": "abc", "ids": [1, 2],
                                                                                "log_tail": [0.5], "top_k": 300}})
        damaged = [data[:end] for end in range(len(data))]
        generator = random.Random(3)
        for _ in range(3000):
            changed = bytearray(data)
            changed[generator.randrange(len(data))] = generator.randrange(256)
            damaged.append(bytes(changed))
        errors = 0
        for each in damaged:
            try:
                wire.decode("ScoreStreamResponse", each)
            except (wire.WireError, UnicodeDecodeError):
                errors += 1
        self.assertGreater(errors, 500)
        for each in (b"\x0a", b"\x0a\x05ab", b"\x08\x01", b"\x0f", b"\x80" * 11, b"\x12\x03\x22\x01a"):
            with self.assertRaises(wire.WireError, msg=each):
                wire.decode("ScoreStreamResponse", each)
