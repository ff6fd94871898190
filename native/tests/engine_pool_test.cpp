// The pool: reuse, bounds, and blocks that outlive it.
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "check.h"
#include "core/pool.h"

namespace fastload {
namespace {

void test_reuse() {
  const auto pool = Pool::make();
  const std::byte* first = nullptr;
  {
    const Block block = pool->allocate(5000);
    first = block.data();
    CHECK(block.bytes() == 5000);
    CHECK(reinterpret_cast<std::uintptr_t>(first) % 64 == 0);
  }
  CHECK(pool->bytes_in_use() == 0 && pool->bytes_kept() >= 5000);
  const Block again = pool->allocate(4900);
  CHECK(again.data() == first);
  const Block other = pool->allocate(4900);
  CHECK(other.data() != first);
}

void test_large() {
  const auto pool = Pool::make();
  const std::byte* address = nullptr;
  {
    const Block block = pool->allocate((std::size_t{5} << 20) + 1);
    address = block.data();
    CHECK(reinterpret_cast<std::uintptr_t>(address) % (2 << 20) == 0);
    std::memset(block.data(), 1, block.bytes());
  }
  {
    const Block near = pool->allocate(std::size_t{4} << 20);  // nearly as large
    CHECK(near.data() == address);
  }
  const Block small = pool->allocate(100);  // not worth so large a block
  CHECK(small.data() != address);
}

void test_shrinks() {
  const auto pool = Pool::make();
  {
    const Block large = pool->allocate(std::size_t{64} << 20);
  }
  CHECK(pool->bytes_kept() >= std::size_t{64} << 20);
  for (int i = 0; i < 300; ++i) const Block small = pool->allocate(3 << 20);
  CHECK(pool->bytes_kept() + pool->bytes_in_use() < std::size_t{8} << 20);
}

void test_never_more_than_the_peak() {
  const auto pool = Pool::make();
  std::vector<Block> held;
  for (std::size_t i = 0; i < 500; ++i) {
    held.push_back(pool->allocate(1000 + 997 * (i % 40)));
    if (held.size() > 5) held.erase(held.begin());
    CHECK(pool->bytes_kept() + pool->bytes_in_use() < 6 * 50'000);
  }
}

void test_outlives() {
  auto pool = Pool::make();
  Block block = pool->allocate(100'000);
  Block large = pool->allocate(10'000'000);
  pool->close();
  CHECK(pool->bytes_in_use() > 0);
  {
    const Block late = pool->allocate(10);
  }
  CHECK(pool->bytes_kept() == 0);
  pool.reset();
  std::memset(block.data(), 2, block.bytes());
  std::memset(large.data(), 2, large.bytes());
}

void test_threads() {
  const auto pool = Pool::make();
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<Block> held;
      for (std::size_t i = 0; i < 2000; ++i) {
        Block block = pool->allocate(64 + (i * 37 + t) % 5000);
        std::memset(block.data(), static_cast<int>(t), block.bytes());
        held.push_back(std::move(block));
        if (held.size() == 8) held.clear();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(pool->bytes_in_use() == 0);
}

void test_moves() {
  const auto pool = Pool::make();
  Block a = pool->allocate(10);
  Block b = std::move(a);
  CHECK(a.data() == nullptr && b.bytes() == 10);
  b = pool->allocate(20);
  CHECK(b.bytes() == 20);
  std::byte mine[4];
  const Block foreign = Block::foreign(mine, 4);
  CHECK(foreign.data() == mine);
}

}  // namespace
}  // namespace fastload

int main() {
  fastload::test_reuse();
  fastload::test_large();
  fastload::test_shrinks();
  fastload::test_never_more_than_the_peak();
  fastload::test_outlives();
  fastload::test_threads();
  fastload::test_moves();
  return fastload::test::finish("engine_pool_test");
}
