"""Confluent's serializers against the schema registry, one scenario a run: python serializers.py URL SCENARIO.

Each payload that went there and back is printed behind its topic, in hex."""

import sys

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf import struct_pb2, timestamp_pb2
from google.type import date_pb2

FIELD = descriptor_pb2.FieldDescriptorProto


def connect():
    """A client that has nothing in its caches."""
    return SchemaRegistryClient({"url": sys.argv[1]})


def round_trip(topic, serialize, deserialize, value):
    ctx = SerializationContext(topic, MessageField.VALUE)
    data = serialize(value, ctx)
    assert data[0] == 0, data
    got = deserialize(data, ctx)
    assert got == value, f"{got} instead of {value}"
    print(topic, data.hex(), flush=True)


def refused(serialize, topic, value):
    try:
        serialize(value, SerializationContext(topic, MessageField.VALUE))
    except SchemaRegistryError as e:
        assert e.http_status_code == 409 and e.error_code == 409, e
    else:
        raise AssertionError("a breaking schema was registered")


def avro():
    client = connect()
    schema = '{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"id","type":"long"},{"name":"item","type":"string","default":""}]}'
    round_trip("avro", AvroSerializer(client, schema), AvroDeserializer(connect()), {"id": 7, "item": "tea"})
    wider = schema.replace('"fields":[', '"fields":[{"name":"note","type":["null","string"],"default":null},')
    round_trip("avro", AvroSerializer(client, wider), AvroDeserializer(connect()), {"note": "now", "id": 8, "item": "milk"})
    assert client.get_versions("avro-value") == [1, 2]
    # What the first schema wrote is read with the second.
    ctx = SerializationContext("avro", MessageField.VALUE)
    old = AvroSerializer(client, schema)({"id": 9, "item": "rice"}, ctx)
    got = AvroDeserializer(connect(), wider)(old, ctx)
    assert got == {"note": None, "id": 9, "item": "rice"}, got
    refused(AvroSerializer(client, schema.replace('"long"', '"boolean"')), "avro", {"id": True, "item": ""})
    latest = {"auto.register.schemas": False, "use.latest.version": True}
    round_trip("avro", AvroSerializer(connect(), None, conf=latest), AvroDeserializer(connect()), {"note": None, "id": 1, "item": ""})


def json():
    client = connect()
    schema = '{"$schema":"http://json-schema.org/draft-07/schema#","title":"Order","type":"object","properties":{"id":{"type":"integer"}},"required":["id"],"additionalProperties":false}'
    round_trip("json", JSONSerializer(schema, client), JSONDeserializer(schema, schema_registry_client=connect()), {"id": 7})
    wider = schema.replace('{"id":', '{"note":{"type":"string"},"id":')
    round_trip("json", JSONSerializer(wider, client), JSONDeserializer(None, schema_registry_client=connect()), {"id": 8, "note": "now"})
    assert client.get_versions("json-value") == [1, 2]
    refused(JSONSerializer(wider.replace('"integer"', '"boolean"'), client), "json", {"id": True})


def references():
    client = connect()
    client.register_schema("item", Schema('{"type":"record","name":"Item","namespace":"shop","fields":[{"name":"name","type":"string"}]}', "AVRO"))
    order = Schema('{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"item","type":"shop.Item"}]}', "AVRO",
                   [SchemaReference("shop.Item", "item", 1)])
    round_trip("avro", AvroSerializer(client, order), AvroDeserializer(connect()), {"item": {"name": "tea"}})
    client.register_schema("name", Schema('{"$schema":"http://json-schema.org/draft-07/schema#","type":"string","minLength":2}', "JSON"))
    order = Schema('{"$schema":"http://json-schema.org/draft-07/schema#","title":"Order","type":"object","properties":{"name":{"$ref":"name.json"}}}', "JSON",
                   [SchemaReference("name.json", "name", 1)])
    round_trip("json", JSONSerializer(order, client), JSONDeserializer(order, schema_registry_client=connect()), {"name": "tea"})


def message(name, *fields, nested=()):
    return descriptor_pb2.DescriptorProto(name=name, nested_type=nested, field=[
        FIELD(name=n, number=i, type=t if isinstance(t, int) else FIELD.TYPE_MESSAGE, type_name=None if isinstance(t, int) else t,
              label=FIELD.LABEL_REPEATED if n.endswith("s") else FIELD.LABEL_OPTIONAL)
        for i, n, t in fields])


def shop(id_type=FIELD.TYPE_INT64, *more):
    """What the code that protoc generates for two files has: their descriptors, in a pool."""
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, struct_pb2, date_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    item = descriptor_pb2.FileDescriptorProto(name="shop/item.proto", package="shop", syntax="proto3", message_type=[
        message("Item", (1, "name", FIELD.TYPE_STRING), (2, "extra", ".google.protobuf.Struct"))])
    item.dependency.append("google/protobuf/struct.proto")
    order = descriptor_pb2.FileDescriptorProto(name="shop/order.proto", package="shop", syntax="proto3", message_type=[
        message("First", (1, "flag", FIELD.TYPE_BOOL)),
        message("Order", (1, "id", id_type), (2, "lines", ".shop.Order.Line"), (3, "at", ".google.protobuf.Timestamp"), *more, nested=[
            message("Line", (1, "item", ".shop.Item"), (2, "count", FIELD.TYPE_SINT32))])])
    order.dependency.extend(["shop/item.proto", "google/protobuf/timestamp.proto"])
    for file in (item, order):
        pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName("shop." + name)) for name in ("First", "Order", "Order.Line")}


def fill(kinds, **more):
    order = kinds["Order"](id=7, **more)
    order.at.FromSeconds(1700000000)
    line = order.lines.add(count=-3)
    line.item.name = "tea"
    line.item.extra["kind"] = "green"
    return order


def protobuf():
    client, kinds = connect(), shop()
    for name, value in (("Order", fill(kinds)), ("First", kinds["First"](flag=True)), ("Order.Line", fill(kinds).lines[0])):
        round_trip("protobuf", ProtobufSerializer(kinds[name], client), ProtobufDeserializer(kinds[name], None, connect()), value)
    assert client.get_versions("protobuf-value") == [1] and client.get_versions("shop/item.proto") == [1]
    wider = shop(FIELD.TYPE_INT64, (4, "note", FIELD.TYPE_STRING))
    round_trip("protobuf", ProtobufSerializer(wider["Order"], client), ProtobufDeserializer(wider["Order"], None, connect()), fill(wider, note="now"))
    assert client.get_versions("protobuf-value") == [1, 2]
    broken = shop(FIELD.TYPE_DOUBLE)
    refused(ProtobufSerializer(broken["Order"], client), "protobuf", fill(broken))
    latest = {"auto.register.schemas": False, "use.latest.version": True}
    round_trip("protobuf", ProtobufSerializer(wider["Order"], connect(), latest), ProtobufDeserializer(wider["Order"], {"use.latest.version": True}, connect()), fill(wider))


def known():
    """A file of Google's that does not come with Protobuf: told to, the serializer registers it as a reference."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(date_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(descriptor_pb2.FileDescriptorProto(
        name="dated.proto", syntax="proto3", dependency=["google/type/date.proto"], message_type=[message("Dated", (1, "day", ".google.type.Date"))]).SerializeToString())
    dated = message_factory.GetMessageClass(pool.FindMessageTypeByName("Dated"))
    value = dated()
    value.day.year = 2024
    round_trip("dated", ProtobufSerializer(dated, connect(), {"skip.known.types": False}), ProtobufDeserializer(dated, None, connect()), value)


def text():
    """A schema that somebody registered as .proto text, with a reference that is text too."""
    client, kinds = connect(), shop()
    client.register_schema("shop/item.proto", Schema(
        'syntax = "proto3"; package shop; import "google/protobuf/struct.proto"; message Item { string name = 1; google.protobuf.Struct extra = 2; }', "PROTOBUF"))
    client.register_schema("text-value", Schema(
        'syntax = "proto3"; package shop; import "shop/item.proto"; import "google/protobuf/timestamp.proto"; message First { bool flag = 1; } message Order { int64 id = 1; '
        'repeated Line lines = 2; google.protobuf.Timestamp at = 3; message Line { Item item = 1; sint32 count = 2; } }',
        "PROTOBUF", [SchemaReference("shop/item.proto", "shop/item.proto", 1)]))
    latest = {"auto.register.schemas": False, "use.latest.version": True}
    round_trip("text", ProtobufSerializer(kinds["Order"], client, latest), ProtobufDeserializer(kinds["Order"], {"use.latest.version": True}, connect()), fill(kinds))
    assert client.get_versions("text-value") == [1]
    # What generated code has is the same schema, whether it may be registered or must be there.
    for config in (None, {"auto.register.schemas": False}):
        round_trip("text", ProtobufSerializer(kinds["Order.Line"], connect(), config), ProtobufDeserializer(kinds["Order.Line"], None, connect()), fill(kinds).lines[0])
    assert client.get_versions("text-value") == [1] and client.get_versions("shop/item.proto") == [1]


globals()[sys.argv[2]]()
print("done", flush=True)
