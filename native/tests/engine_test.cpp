// The engine over written shards: what it makes, in which order, and what happens when something goes wrong.
#include "core/engine.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "fixture.h"

namespace fastload {
namespace {

using test::Data;
using test::Payloads;

constexpr std::size_t record_count = 300;
const auto no_interrupt = [] {};

// A dataset of three shards, and what is in it.
struct Sample {
  explicit Sample(std::shared_ptr<const SchemaSpec> with_schema, Verify verify = Verify::first)
      : schema(std::move(with_schema)), records(test::random_records(*schema, record_count, 7)) {
    std::vector<test::TableEntry> entries;
    for (std::size_t shard = 0; shard < 3; ++shard) {
      const std::vector<Payloads> part(records.begin() + static_cast<std::ptrdiff_t>(shard * 100),
                                       records.begin() + static_cast<std::ptrdiff_t>(shard * 100 + 100));
      auto written = test::write_shard(schema, part, options());
      const std::string name = std::to_string(shard) + ".shard";
      test::write_file(folder.file(name), written.file);
      entries.push_back({name, written.expectation});
      files.push_back(std::move(written.file));
    }
    table = test::make_table(entries);
    dataset = Dataset::open(folder.path(), schema, table, nullptr, verify, 2);
  }

  ShardWriterOptions options() const {
    ShardWriterOptions writer;
    writer.spill_folder = folder.path();
    return writer;
  }

  // Flips a bit of the shard's file where `payload` lies.
  void damage(std::size_t shard, const Data& payload) {
    Data& file = files[shard];
    const auto at = std::search(file.begin(), file.end(), payload.begin(), payload.end());
    CHECK(at != file.end());
    *at ^= std::byte{1};
    test::write_file(folder.file(std::to_string(shard) + ".shard"), file);
  }

  test::TemporaryFolder folder;
  std::shared_ptr<const SchemaSpec> schema;
  std::vector<Payloads> records;
  std::vector<Data> files;
  Data table;
  std::shared_ptr<Dataset> dataset;
};

FieldPlan column_plan(const SchemaSpec& schema, std::uint32_t field) {
  FieldPlan plan;
  plan.name = schema.fields[field].name;
  plan.field = field;
  plan.nullable = schema.fields[field].nullable;
  plan.item_bytes = schema.fields[field].item_bytes;
  return plan;
}

FieldPlan values_plan(const SchemaSpec& schema, std::uint32_t field) {
  FieldPlan plan = column_plan(schema, field);
  plan.kind = FieldKind::values;
  return plan;
}

BatchPlan whole_plan(const Sample& sample) {
  BatchPlan plan;
  plan.sources.push_back(sample.dataset);
  for (std::uint32_t f = 0; f < sample.schema->fields.size(); ++f) {
    plan.fields.push_back(sample.schema->fields[f].heap ? values_plan(*sample.schema, f)
                                                        : column_plan(*sample.schema, f));
  }
  return plan;
}

BatchIndices indices(std::vector<std::int64_t> records) {
  BatchIndices out;
  out.positions = records;
  out.sources.assign(records.size(), 0);
  out.records = std::move(records);
  return out;
}

std::vector<std::int64_t> spread(std::size_t begin, std::size_t count) {
  std::vector<std::int64_t> records;
  for (std::size_t i = 0; i < count; ++i)
    records.push_back(static_cast<std::int64_t>((begin + i) * 77 % record_count));
  return records;
}

// Whether every sample that was not rejected is what was written.
bool right(const Sample& sample, const Batch& batch) {
  for (std::size_t f = 0; f < batch.outputs.size(); ++f) {
    const FieldPlan& plan = batch.plan->fields[f];
    const FieldOutput& output = batch.outputs[f];
    for (std::size_t i = 0; i < batch.samples(); ++i) {
      if (batch.rejected(i)) continue;
      const auto& payload = sample.records[static_cast<std::size_t>(batch.indices.records[i])][plan.field];
      if (plan.nullable && (output.validity.as<std::uint8_t>()[i] == 1) != payload.has_value()) return false;
      if (!payload) continue;
      const std::byte* at = output.data.data();
      if (plan.kind == FieldKind::column) {
        at += i * plan.item_bytes;
      } else {
        at += output.offsets.as<std::int64_t>()[i];
        if (output.lengths.as<std::int64_t>()[i] != static_cast<std::int64_t>(payload->size())) return false;
      }
      if (!std::equal(payload->begin(), payload->end(), at)) return false;
    }
  }
  return true;
}

void test_many_in_flight(std::size_t threads, std::uint64_t budget, Verify verify) {
  const Sample sample(test::rich_schema(), verify);
  Engine engine(whole_plan(sample), threads, budget);
  std::vector<std::shared_ptr<Batch>> kept;
  for (std::size_t b = 0; b < 40; ++b) engine.submit(indices(spread(b * 13, 1 + b)));
  for (std::size_t b = 0; b < 40; ++b) {
    const auto batch = engine.next(0, no_interrupt);
    CHECK(batch->indices.records == spread(b * 13, 1 + b));
    CHECK(right(sample, *batch));
    if (b % 3 == 0) kept.push_back(batch);
  }
  for (const auto& batch : kept) CHECK(right(sample, *batch));
  CHECK_THROWS(ErrorKind::engine, engine.next(0, no_interrupt));
  const EngineStats stats = engine.stats();
  CHECK(stats.batches == 40 && stats.samples == 820 && stats.in_flight == 0);
  engine.close();
  engine.close();
  for (const auto& batch : kept) CHECK(right(sample, *batch));
  CHECK_THROWS(ErrorKind::engine, engine.submit(indices({1})));
  CHECK_THROWS(ErrorKind::engine, engine.next(0, no_interrupt));
}

void test_early_close(std::size_t threads) {
  const Sample sample(test::rich_schema());
  for (int round = 0; round < 20; ++round) {
    Engine engine(whole_plan(sample), threads, 0);
    for (std::size_t b = 0; b < 8; ++b) engine.submit(indices(spread(b, 100)));
    if (round % 2 == 0) CHECK(right(sample, *engine.next(0, no_interrupt)));
  }
}

void test_empty_and_foreign() {
  const Sample sample(test::rich_schema());
  BatchPlan plan = whole_plan(sample);
  plan.fields.resize(1);
  Engine engine(plan, 2, 0);
  Data mine(37 * 10);
  engine.submit(indices({}));
  engine.submit(indices(spread(0, 10)), {mine.data()});
  CHECK(engine.next(0, no_interrupt)->samples() == 0);
  const auto batch = engine.next(0, no_interrupt);
  CHECK(batch->outputs[0].data.data() == mine.data() && right(sample, *batch));

  Engine all(whole_plan(sample), 2, 0);
  all.submit(indices({}));
  CHECK(all.next(0, no_interrupt)->outputs[1].offsets.as<std::int64_t>()[0] == 0);
}

void test_first_error_counts(std::size_t threads) {
  Sample sample(test::schema_of({test::column("x", 8), test::heap("text")}));
  // Values of one record each, in the middle of the second shard.
  std::vector<std::int64_t> records = spread(0, 200);
  std::vector<std::size_t> bad;
  for (std::size_t i = 0; i < records.size() && bad.size() < 3; ++i) {
    const auto& payload = *sample.records[static_cast<std::size_t>(records[i])][1];
    if (i > 20 && records[i] / 100 == 1 && payload.size() > 60) bad.push_back(i);
  }
  CHECK(bad.size() == 3);
  for (const std::size_t i : bad) sample.damage(1, *sample.records[static_cast<std::size_t>(records[i])][1]);
  for (int round = 0; round < 10; ++round) {
    Engine engine(whole_plan(sample), threads, 0);
    engine.submit(indices({0, 1, 2}));
    engine.submit(indices(records));
    engine.submit(indices({3, 4, 5}));
    CHECK(right(sample, *engine.next(0, no_interrupt)));
    const Error error = CHECK_THROWS(ErrorKind::corruption, engine.next(0, no_interrupt));
    CHECK(error.where.record == records[bad[0]] && error.where.field == "text");
    CHECK(right(sample, *engine.next(0, no_interrupt)));
  }
}

void test_bad_records_are_left_out(std::size_t threads) {
  Sample sample(test::schema_of({test::column("x", 8), test::heap("text")}));
  const std::vector<std::int64_t> records = spread(0, 300);
  std::vector<std::size_t> bad;
  for (std::size_t i = 0; i < records.size() && bad.size() < 9; ++i) {
    const auto& payload = *sample.records[static_cast<std::size_t>(records[i])][1];
    if (records[i] / 100 != 1 || payload.size() <= 60) continue;
    sample.damage(1, payload);
    bad.push_back(i);
  }
  CHECK(bad.size() == 9);
  BatchPlan plan = whole_plan(sample);
  plan.tolerant = true;
  for (int round = 0; round < 10; ++round) {
    Engine engine(plan, threads, 0);
    engine.submit(indices(records));
    engine.submit(indices({records[bad[0]]}));
    engine.submit(indices({0, 1000, records[bad[0]]}));
    const auto batch = engine.next(0, no_interrupt);
    CHECK(right(sample, *batch) && batch->rejections().size() == bad.size());
    for (const std::size_t i : bad) CHECK(batch->rejected(i));
    for (const Rejection& rejection : batch->rejections()) {
      CHECK(rejection.error.kind == ErrorKind::corruption && rejection.error.where.field == "text");
      CHECK(rejection.error.where.record == records[rejection.sample]);
    }
    CHECK(engine.next(0, no_interrupt)->rejections().size() == 1);
    CHECK_THROWS(ErrorKind::usage, engine.next(0, no_interrupt));  // no matter of the record's bytes
  }
}

void test_missing_records_and_shards(std::size_t threads) {
  const Sample sample(test::rich_schema());
  std::filesystem::remove(sample.folder.file("2.shard"));
  Engine engine(whole_plan(sample), threads, 0);
  engine.submit(indices({1, 2, 250, 3}));
  engine.submit(indices({1, 300}));
  engine.submit(indices({1, -1}));
  engine.submit(indices({2}));
  CHECK_THROWS(ErrorKind::shard_not_found, engine.next(0, no_interrupt));
  CHECK(CHECK_THROWS(ErrorKind::usage, engine.next(0, no_interrupt)).where.record == 300);
  CHECK_THROWS(ErrorKind::usage, engine.next(0, no_interrupt));
  CHECK(right(sample, *engine.next(0, no_interrupt)));
  CHECK_THROWS(ErrorKind::usage, engine.submit({{1}, {}, {1}, 0}));
}

void test_padded() {
  Sample sample(test::schema_of({test::heap("t", Codec::raw, true), test::heap("z", Codec::zstd)}));
  BatchPlan plan;
  plan.sources.push_back(sample.dataset);
  for (std::uint32_t f = 0; f < 2; ++f) {
    plan.fields.push_back(values_plan(*sample.schema, f));
    plan.fields.back().padded = true;
  }
  Engine engine(plan, 2, 0);
  engine.submit(indices(spread(5, 50)));
  const auto batch = engine.next(0, no_interrupt);
  for (std::size_t f = 0; f < 2; ++f) {
    const Block& data = batch->outputs[f].data;
    const std::size_t room = data.bytes() / 50;
    std::size_t longest = 0;
    bool ok = true;
    for (std::size_t i = 0; i < 50; ++i) {
      Data expected = sample.records[static_cast<std::size_t>(batch->indices.records[i])][f].value_or(Data());
      longest = std::max(longest, expected.size());
      expected.resize(room);
      ok = ok && std::equal(expected.begin(), expected.end(), data.data() + i * room);
    }
    CHECK(ok && room == longest);
  }
}

void test_wrong_unit() {
  Sample sample(test::schema_of({test::heap("t")}));
  BatchPlan plan;
  plan.sources.push_back(sample.dataset);
  plan.fields.push_back(values_plan(*sample.schema, 0));
  plan.fields[0].inner_bytes = 1000;
  Engine engine(plan, 1, 0);
  const auto first = std::find_if(sample.records.begin(), sample.records.end(),
                                  [](const Payloads& record) { return !record[0]->empty(); });
  engine.submit(indices({first - sample.records.begin()}));
  CHECK_THROWS(ErrorKind::decode, engine.next(0, no_interrupt));
}

// Images that only the fallback knows: the first byte is the height, all have the width 3.
image::Pixels decode(std::span<const std::byte> encoded, int channels) {
  image::Pixels pixels;
  pixels.size = {std::to_integer<std::int64_t>(encoded[0]) % 4 + 1, 3};
  pixels.channels = channels;
  pixels.data.assign(static_cast<std::size_t>(pixels.size.height * 3 * channels), 9);
  return pixels;
}

void test_images(std::size_t threads) {
  Sample sample(test::schema_of({test::heap("image")}));
  std::vector<std::int64_t> tall;
  std::vector<std::int64_t> flat;
  for (std::size_t i = 0; i < record_count; ++i) {
    const Data& data = *sample.records[i][0];
    if (data.empty()) continue;
    if (decode(data, 1).size.height == 4) tall.push_back(static_cast<std::int64_t>(i));
    if (decode(data, 1).size.height == 1) flat.push_back(static_cast<std::int64_t>(i));
  }
  BatchPlan plan;
  plan.sources.push_back(sample.dataset);
  FieldPlan field = values_plan(*sample.schema, 0);
  field.kind = FieldKind::image;
  field.program = image::Program::compile({}, 3, 0);
  plan.fields.push_back(field);
  plan.fallback = decode;
  Engine engine(plan, threads, 0);
  engine.submit(indices(tall));
  engine.submit(indices({tall[0], tall[1], flat[0], tall[2]}));
  engine.submit(indices(flat));
  const auto batch = engine.next(0, no_interrupt);
  CHECK((batch->outputs[0].size == image::Size{4, 3}));
  CHECK(batch->outputs[0].data.bytes() == tall.size() * 36);
  const Error error = CHECK_THROWS(ErrorKind::engine, engine.next(0, no_interrupt));
  CHECK(error.where.record == flat[0]);
  CHECK(std::string(error.what()).find("records " + std::to_string(tall[0]) + " and ") == 0);
  CHECK(engine.next(0, no_interrupt)->outputs[0].size.height == 1);
}

void test_timeout_and_interrupt() {
  Sample sample(test::schema_of({test::heap("image")}));
  BatchPlan plan;
  plan.sources.push_back(sample.dataset);
  FieldPlan field = values_plan(*sample.schema, 0);
  field.kind = FieldKind::image;
  field.program = image::Program::compile({}, 3, 0);
  plan.fields.push_back(field);
  std::atomic<bool> go{false};
  plan.fallback = [&](std::span<const std::byte> encoded, int channels) {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return decode(encoded, channels);
  };
  std::size_t first = 0;
  while (sample.records[first][0]->empty()) ++first;
  Engine engine(plan, 1, 0);
  engine.submit(indices({static_cast<std::int64_t>(first)}));
  CHECK_THROWS(ErrorKind::engine, engine.next(0.01, no_interrupt));
  CHECK_THROWS(ErrorKind::usage, engine.next(0, [] { throw Error(ErrorKind::usage, "interrupted"); }));
  CHECK(engine.stats().in_flight == 1);
  // Closing from elsewhere ends a wait.
  std::thread closer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    go = true;
    engine.close();
  });
  try {
    engine.next(0, no_interrupt);  // the batch may come first
  } catch (const Error& error) {
    CHECK(error.kind == ErrorKind::engine);
  }
  closer.join();
}

void test_budget_bounds_memory() {
  const Sample sample(test::schema_of({test::column("x", 8192)}));
  Engine engine(whole_plan(sample), 2, 3 * 100 * 8192);
  for (std::size_t b = 0; b < 20; ++b) engine.submit(indices(spread(b, 100)));
  for (std::size_t b = 0; b < 20; ++b) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(engine.stats().pool_bytes <= 5 * 110 * 8192);
    CHECK(right(sample, *engine.next(0, no_interrupt)));
  }
}

void test_fork() {
  const Sample sample(test::rich_schema());
  auto engine = std::make_unique<Engine>(whole_plan(sample), 2, 0);
  engine->submit(indices(spread(0, 50)));
  auto batch = engine->next(0, no_interrupt);
  const pid_t child = fork();
  if (child == 0) {
    int failures = 0;
    try {
      engine->submit(indices({1}));
      ++failures;
    } catch (const Error& error) {
      failures += error.kind != ErrorKind::engine;
    }
    if (!right(sample, *batch)) ++failures;
    batch.reset();
    engine->close();
    engine.reset();
    _exit(failures);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  engine->submit(indices(spread(9, 50)));
  CHECK(right(sample, *engine->next(0, no_interrupt)));
}

}  // namespace
}  // namespace fastload

int main() {
  using fastload::Verify;
  for (std::size_t threads = 0; threads <= 8; ++threads) {
    fastload::test_many_in_flight(threads, 0, Verify::first);
    fastload::test_early_close(threads);
  }
  fastload::test_many_in_flight(3, 1, Verify::always);
  fastload::test_many_in_flight(2, 50'000, Verify::never);
  for (const std::size_t threads : {0, 1, 4}) {
    fastload::test_first_error_counts(threads);
    fastload::test_bad_records_are_left_out(threads);
    fastload::test_missing_records_and_shards(threads);
    fastload::test_images(threads);
  }
  fastload::test_empty_and_foreign();
  fastload::test_padded();
  fastload::test_wrong_unit();
  fastload::test_timeout_and_interrupt();
  fastload::test_budget_bounds_memory();
  fastload::test_fork();
  return fastload::test::finish("engine_test");
}
