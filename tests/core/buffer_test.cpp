// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/buffer.h>

#include <array>
#include <span>
#include <vector>

#include "support/expect_error.h"

// The types of DLPack, as a framework's copy of the header would define them.
namespace dlpack_lookalike {
struct Device {
  int device_type;
  std::int32_t device_id;
};
struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct Managed {
  Tensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(Managed*);
};
struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};
struct ManagedVersioned {
  Version version;
  void* manager_ctx;
  void (*deleter)(ManagedVersioned*);
  std::uint64_t flags;
  Tensor dl_tensor;
};
}  // namespace dlpack_lookalike

namespace image {
struct Image {
  int height = 2;
  int width = 3;
  std::vector<unsigned char> pixels = std::vector<unsigned char>(6);
};
}  // namespace image

template <>
struct cohort::BufferTraits<image::Image> {
  static Buffer buffer(image::Image& i) { return {i.pixels.data(), DType::u8, {i.height, i.width}}; }
  static ConstBuffer const_buffer(const image::Image& i) { return {i.pixels.data(), DType::u8, {i.height, i.width}}; }
};

namespace cohort::test {
namespace {

std::size_t bytes_of(const ConstBuffer& buffer) {
  return buffer.bytes();
}
void* writable(const Buffer& buffer) {
  return buffer.data();
}

TEST(BufferTest, MadeImplicitlyFromWhatUsersHave) {
  std::vector<float> vector(5);
  EXPECT_EQ(writable(vector), vector.data());
  EXPECT_EQ(bytes_of(vector), 20U);
  EXPECT_EQ(writable(std::span(vector).subspan(1)), vector.data() + 1);
  std::array<double, 3> array{};
  EXPECT_EQ(bytes_of(array), 24U);
  const std::vector<int> constant(2);
  EXPECT_EQ(bytes_of(constant), 8U);
  EXPECT_EQ(bytes_of(std::span<const std::int64_t>()), 0U);
  image::Image picture;
  EXPECT_EQ(writable(picture), picture.pixels.data());
  EXPECT_EQ(Buffer(picture).sizes(), (Dims{2, 3}));
  const image::Image still;
  EXPECT_EQ(bytes_of(still), 6U);

  static_assert(!std::is_constructible_v<Buffer, const std::vector<float>&>, "const memory is not written to");
  static_assert(!std::is_constructible_v<Buffer, std::vector<float>>, "a temporary would be gone");
  static_assert(!std::is_constructible_v<Buffer, std::vector<bool>&>, "vector<bool> has no elements in memory");
  static_assert(std::is_constructible_v<Buffer, std::span<float>>);
}

TEST(BufferTest, KnowsItsShape) {
  std::vector<float> memory(24);
  const Buffer plain(memory.data(), DType::f32, {2, 3, 4});
  EXPECT_EQ(plain.count(), 24);
  EXPECT_TRUE(plain.is_contiguous());
  EXPECT_TRUE(Buffer(memory.data(), DType::f32, {2, 3, 4}, {12, 4, 1}).is_contiguous()) << "strides that say the same";
  EXPECT_TRUE(Buffer(memory.data(), DType::f32, {1, 4}, {99, 1}).is_contiguous()) << "one row has no stride";
  const Buffer transposed(memory.data(), DType::f32, {4, 6}, {1, 4});
  EXPECT_FALSE(transposed.is_contiguous());
  EXPECT_EQ(transposed.strides(), (Dims{1, 4}));
  EXPECT_TRUE(plain.is_dense());
  EXPECT_TRUE(transposed.is_dense());
  EXPECT_TRUE(Buffer(memory.data(), DType::f32, {2, 3, 1, 4}, {12, 1, 77, 3}).is_dense()) << "in any order";
  EXPECT_FALSE(Buffer(memory.data(), DType::f32, {4, 2}, {4, 1}).is_dense()) << "gaps";
  EXPECT_FALSE(Buffer(memory.data(), DType::f32, {4, 2}, {0, 1}).is_dense()) << "overlaps";
  EXPECT_EQ(Buffer(memory.data(), DType::f32, {}).count(), 1) << "no dimensions: a scalar";
  const Buffer many(memory.data(), DType::f32, {1, 2, 1, 3, 1, 4});
  EXPECT_EQ(to_string(many.sizes()), "[1, 2, 1, 3, 1, 4]");
  EXPECT_EQ(many.count(), 24);
}

TEST(BufferTest, RefusesNonsense) {
  float x = 0;
  EXPECT_ERROR(ValueError, Buffer(&x, DType::f32, {-1}), "negative");
  EXPECT_ERROR(ValueError, Buffer(&x, DType::f32, {1LL << 40, 1LL << 40}), "too many elements");
  EXPECT_ERROR(ValueError, Buffer(&x, DType::complex128, {1LL << 60}), "too many bytes");
  EXPECT_ERROR(ValueError, Buffer(&x, DType::f32, {2, 2}, {1}), "1 strides for 2 dimensions");
  EXPECT_ERROR(ValueError, Buffer(nullptr, DType::f32, {2}), "null");
  EXPECT_EQ(Buffer(nullptr, DType::f32, {0, 7}).count(), 0) << "nothing may be nowhere";
}

TEST(BufferTest, KeepsItsOwnerAlive) {
  auto owner = std::make_shared<std::vector<float>>(3);
  const std::weak_ptr<std::vector<float>> watch = owner;
  {
    const Buffer buffer(owner->data(), DType::f32, {3}, {}, "cpu", owner);
    owner.reset();
    EXPECT_FALSE(watch.expired());
    const ConstBuffer copy = buffer;
    EXPECT_EQ(copy.keep_alive().use_count(), 2);
  }
  EXPECT_TRUE(watch.expired());
}

TEST(BufferTest, ReadsDLPack) {
  std::vector<float> memory(12);
  std::int64_t shape[] = {2, 3};
  std::int64_t strides[] = {1, 2};
  const dlpack_lookalike::Tensor tensor{memory.data(), {1, 0}, 2, {2, 32, 1}, shape, strides, 8};
  const auto buffer = Buffer::from_dlpack(tensor);
  EXPECT_EQ(buffer.data(), memory.data() + 2);
  EXPECT_EQ(buffer.dtype(), DType::f32);
  EXPECT_EQ(buffer.sizes(), (Dims{2, 3}));
  EXPECT_FALSE(buffer.is_contiguous());
  const dlpack_lookalike::Tensor on_gpu{memory.data(), {2, 1}, 2, {4, 16, 1}, shape, nullptr, 0};
  EXPECT_EQ(Buffer::from_dlpack(on_gpu).device(), Device("cuda:1"));
  EXPECT_EQ(Buffer::from_dlpack(on_gpu).dtype(), DType::bf16);
  const dlpack_lookalike::Tensor vectorised{memory.data(), {1, 0}, 1, {2, 32, 4}, shape, nullptr, 0};
  EXPECT_ERROR(TypeError, Buffer::from_dlpack(vectorised), "4 lanes");
  for (const auto& [bits, dtype] : {std::pair(16, DType::u16), std::pair(32, DType::u32), std::pair(64, DType::u64)}) {
    const auto width = static_cast<std::uint8_t>(bits);
    const dlpack_lookalike::Tensor numbers{memory.data(), {1, 0}, 1, {1, width, 1}, shape, nullptr, 0};
    EXPECT_EQ(Buffer::from_dlpack(numbers).dtype(), dtype);
  }
  const dlpack_lookalike::Tensor wide{memory.data(), {1, 0}, 1, {1, 128, 1}, shape, nullptr, 0};
  EXPECT_ERROR(TypeError, Buffer::from_dlpack(wide), "no dtype here");
  const dlpack_lookalike::Tensor on_fpga{memory.data(), {99, 0}, 1, {2, 32, 1}, shape, nullptr, 0};
  EXPECT_ERROR(TypeError, Buffer::from_dlpack(on_fpga), "device type 99");
}

int deleted = 0;

TEST(BufferTest, OwnsManagedDLPack) {
  std::vector<double> memory(4);
  std::int64_t shape[] = {4};
  deleted = 0;
  dlpack_lookalike::Managed managed{{memory.data(), {1, 0}, 1, {2, 64, 1}, shape, nullptr, 0},
                                    nullptr,
                                    [](dlpack_lookalike::Managed*) { ++deleted; }};
  {
    const auto buffer = Buffer::from_dlpack(&managed);
    EXPECT_EQ(buffer.dtype(), DType::f64);
    EXPECT_EQ(deleted, 0);
  }
  EXPECT_EQ(deleted, 1);

  dlpack_lookalike::ManagedVersioned newer{{2, 0},
                                           nullptr,
                                           [](dlpack_lookalike::ManagedVersioned*) { ++deleted; },
                                           0,
                                           {memory.data(), {1, 0}, 1, {2, 64, 1}, shape, nullptr, 0}};
  EXPECT_ERROR(TypeError, Buffer::from_dlpack(&newer), "major version 2");
  EXPECT_EQ(deleted, 2) << "a tensor that is refused is not leaked";
  newer.version.major = 1;
  EXPECT_EQ(Buffer::from_dlpack(&newer).count(), 4);
  EXPECT_EQ(deleted, 3);
}

}  // namespace
}  // namespace cohort::test
