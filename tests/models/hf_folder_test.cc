// A Hugging Face folder: reads back what was written, in one file or in shards; every reason for which a folder is
// refused; a disk that fails leaves nothing behind.
#include "models/hf_folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "models/hf_json.h"
#include "models/number_bytes.h"
#include "models/tiny_llama.h"
#include "support/faulty_file_system.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::kTinyLlama;
using test::ScratchFolder;
using test::tiny_llama;
using test::tiny_tokenizer;

std::string read(const fs::path& path) { return read_file(path).take(); }
void write(const fs::path& path, std::string_view bytes) { std::ofstream(path, std::ios::binary) << bytes; }

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

void write_tiny(const fs::path& path, const HfOptions& options = {}) {
  test::FaultyFileSystem without_waiting;  // for the disk
  const ScopedFileSystem scoped(without_waiting);
  write_hf_folder(path, kTinyLlama, tiny_tokenizer(), tiny_llama(kTinyLlama), options).take();
}

constexpr uint64_t kSmallShards = 200'000;

// The reason why the folder is refused, without its path.
std::string refusal(const fs::path& path) {
  const auto folder = HfFolder::open(path);
  if (folder) return "taken";
  std::string message = folder.error().message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  for (size_t at; (at = message.find(path.string() + "/")) != std::string::npos;) {
    message.erase(at, path.string().size() + 1);
  }
  return message;
}

void change_json(const fs::path& path, const std::function<void(json&)>& change) {
  json value = json::parse(read(path));
  change(value);
  write(path, value.dump());
}

// Rewrites the folder's single file with changed tensors; their bytes must outlive the call.
void change_tensors(const fs::path& folder, const std::function<void(std::vector<SafetensorsTensor>&)>& change) {
  const auto file = SafetensorsFile::open(folder / "model.safetensors").take();
  auto tensors = file.tensors();
  change(tensors);
  ASSERT_TRUE(write_safetensors(folder / "model.safetensors", tensors).ok());
}

TEST(HfFolder, ReadsBackExactlyWhatWasWritten) {
  const ScratchFolder scratch;
  write_tiny(scratch / "model");
  EXPECT_EQ(names_in(scratch / "model"),
            (std::set<std::string>{"config.json", "generation_config.json", "model.safetensors",
                                   "special_tokens_map.json", "tokenizer.model", "tokenizer_config.json"}));
  EXPECT_EQ(scratch.file_count(), 1U) << "a partial folder was left";

  const auto folder = HfFolder::open(scratch / "model").take();
  EXPECT_EQ(folder.config(), (HfConfig{kTinyLlama, 1, 2, false, Dtype::kF32}));
  for (const auto& tensor : llama_tensors(kTinyLlama)) {
    EXPECT_EQ(folder.values(tensor.name).take(), test::tiny_values(tensor)) << tensor.name;
  }
  EXPECT_EQ(folder.tokenizer().take().model(), tiny_tokenizer().model());
  const auto file = SafetensorsFile::open(scratch / "model" / "model.safetensors").take();
  EXPECT_EQ(file.metadata(), (SafetensorsMetadata{{"format", "pt"}}));
}

// transformers' names and shapes, written out here so that they are not compared with a copy of themselves.
TEST(HfFolder, HoldsTheTensorsOfLlamaForCausalLm) {
  using Shape = std::vector<int64_t>;
  std::map<std::string, Shape> expected{
      {"model.embed_tokens.weight", {512, 64}}, {"model.norm.weight", {64}}, {"lm_head.weight", {512, 64}}};
  for (const std::string block : {"model.layers.0.", "model.layers.1.", "model.layers.2."}) {
    expected[block + "input_layernorm.weight"] = Shape{64};
    expected[block + "self_attn.q_proj.weight"] = {64, 64};
    expected[block + "self_attn.k_proj.weight"] = {32, 64};
    expected[block + "self_attn.v_proj.weight"] = {32, 64};
    expected[block + "self_attn.o_proj.weight"] = {64, 64};
    expected[block + "post_attention_layernorm.weight"] = Shape{64};
    expected[block + "mlp.gate_proj.weight"] = {160, 64};
    expected[block + "mlp.up_proj.weight"] = {160, 64};
    expected[block + "mlp.down_proj.weight"] = {64, 160};
  }
  const ScratchFolder scratch;
  write_tiny(scratch / "model");
  const auto file = SafetensorsFile::open(scratch / "model" / "model.safetensors").take();
  std::map<std::string, Shape> found;
  for (const auto& tensor : file.tensors()) found[tensor.name] = tensor.shape;
  EXPECT_EQ(found, expected);
}

TEST(HfFolder, RoundsOnceToShorterTypes) {
  const ScratchFolder scratch;
  for (const auto& [dtype, text] : {std::pair(Dtype::kF16, "float16"), std::pair(Dtype::kBf16, "bfloat16")}) {
    const auto path = scratch / text;
    write_tiny(path, {.dtype = dtype});
    const auto folder = HfFolder::open(path).take();
    EXPECT_EQ(json::parse(read(path / "config.json"))["torch_dtype"], text);
    for (const auto& tensor : llama_tensors(kTinyLlama)) {
      auto expected = test::tiny_values(tensor);
      for (float& value : expected) {
        value = dtype == Dtype::kF16 ? from_f16(to_f16(value)) : from_bf16(to_bf16(value));
      }
      EXPECT_EQ(folder.values(tensor.name).take(), expected) << tensor.name;
    }
  }
}

TEST(HfFolder, WritesShardsWithAnIndexAndReadsThem) {
  const ScratchFolder scratch;
  write_tiny(scratch / "model", {.max_shard_bytes = kSmallShards});
  const auto index = json::parse(read(scratch / "model" / "model.safetensors.index.json"));
  std::set<std::string> files;
  uint64_t total = 0;
  for (const auto& tensor : llama_tensors(kTinyLlama)) {
    const auto name = index["weight_map"].at(tensor.name).get<std::string>();
    const auto file = SafetensorsFile::open(scratch / "model" / name).take();
    ASSERT_NE(file.find(tensor.name), nullptr);
    total += file.find(tensor.name)->bytes.size();
    files.insert(name);
  }
  EXPECT_EQ(index["metadata"]["total_size"], total);
  ASSERT_EQ(files.size(), 5U);
  EXPECT_EQ(*files.begin(), "model-00001-of-00005.safetensors");
  for (const auto& name : files) EXPECT_LE(fs::file_size(scratch / "model" / name), kSmallShards + 4096);
  EXPECT_FALSE(fs::exists(scratch / "model" / "model.safetensors"));

  const auto folder = HfFolder::open(scratch / "model").take();
  for (const auto& tensor : llama_tensors(kTinyLlama)) {
    EXPECT_EQ(folder.values(tensor.name).take(), test::tiny_values(tensor)) << tensor.name;
  }
}

TEST(HfFolder, PutsATensorLargerThanAShardIntoItsOwnFile) {
  const ScratchFolder scratch;
  write_tiny(scratch / "model", {.max_shard_bytes = 1});
  EXPECT_EQ(refusal(scratch / "model"), "taken");
  EXPECT_TRUE(fs::exists(scratch / "model" / "model-00030-of-00030.safetensors"));
}

// The modeling file itself is tested in modeling_test.cc.
TEST(HfFolder, OfAModelWithTokenTables_HasTheirTensorsAndTheCode) {
  LlamaShape shape = kTinyLlama;
  shape.tables = TokenTables{{0, 2}, true, 2};
  const ScratchFolder scratch;
  const auto path = scratch / "model";
  write_hf_folder(path, shape, tiny_tokenizer(), tiny_llama(shape)).take();
  EXPECT_EQ(read(path / "modeling_thinpipe.py"), read("src/models/modeling_thinpipe.py"));
  EXPECT_EQ(json::parse(read(path / "generation_config.json"))["use_cache"], false);
  const auto file = SafetensorsFile::open(path / "model.safetensors").take();
  std::set<std::string> tables;
  for (const auto& tensor : file.tensors()) {
    if (tensor.name.starts_with("model.anchors.") || tensor.name.starts_with("model.previous.")) {
      tables.insert(tensor.name);
      EXPECT_EQ(tensor.shape, (std::vector<int64_t>{512, 64}));
    }
  }
  EXPECT_EQ(tables, (std::set<std::string>{"model.anchors.0.weight", "model.anchors.1.weight",
                                           "model.previous.0.weight", "model.previous.1.weight"}));
  EXPECT_EQ(file.tensors().size(), llama_tensors(kTinyLlama).size() + tables.size());
  EXPECT_EQ(
      refusal(path),
      "config.json: model_type is \"thinpipe\", needs \"llama\"; thinpipe exports such a model but cannot read it "
      "back");
}

TEST(HfFolder, TellsTransformersHowToTokenise) {
  const ScratchFolder scratch;
  write_tiny(scratch / "model");
  const auto config = json::parse(read(scratch / "model" / "tokenizer_config.json"));
  EXPECT_EQ(config["tokenizer_class"], "LlamaTokenizer");
  EXPECT_EQ(config["bos_token"], "<s>");
  EXPECT_EQ(config["eos_token"], "</s>");
  EXPECT_EQ(config["unk_token"], "<unk>");
  EXPECT_EQ(config["legacy"], true);
  EXPECT_EQ(config["add_bos_token"], true);
  EXPECT_EQ(config["add_eos_token"], false);
  EXPECT_EQ(config["add_prefix_space"], true);
  EXPECT_EQ(config["clean_up_tokenization_spaces"], false);
  EXPECT_EQ(config["model_max_length"], 256);
  ASSERT_EQ(config["added_tokens_decoder"].size(), 3U);
  EXPECT_EQ(config["added_tokens_decoder"]["2"]["content"], "</s>");
  EXPECT_EQ(json::parse(read(scratch / "model" / "special_tokens_map.json")),
            (json{{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}));
  EXPECT_EQ(json::parse(read(scratch / "model" / "generation_config.json"))["eos_token_id"], 2);
}

TEST(HfFolder, WritesNullForAMissingEndOfText) {
  // Appends to the trainer's specification, field 2, an end-of-text piece, field 47, that does not exist.
  const std::string model = tiny_tokenizer().model() + "\x12\x05\xfa\x02\x02zz";
  const auto tokenizer = Tokenizer::parse(model, "endless").take();
  ASSERT_EQ(tokenizer.eos(), -1);
  const ScratchFolder scratch;
  write_hf_folder(scratch / "model", kTinyLlama, tokenizer, tiny_llama(kTinyLlama)).take();
  EXPECT_EQ(HfFolder::open(scratch / "model").take().config().eos, std::nullopt);
  EXPECT_EQ(json::parse(read(scratch / "model" / "tokenizer_config.json")).at("eos_token"), nullptr);
  EXPECT_FALSE(json::parse(read(scratch / "model" / "generation_config.json")).contains("eos_token_id"));
}

TEST(HfFolder, ReadsATiedHeadFromTheEmbedding) {
  const ScratchFolder scratch;
  const auto path = scratch / "model";
  write_tiny(path);
  const auto tie = [](json& config) { config["tie_word_embeddings"] = true; };
  change_json(path / "config.json", tie);
  const auto embedding = test::tiny_values(llama_tensors(kTinyLlama).front());
  // transformers ties them even if the file has a head.
  EXPECT_EQ(HfFolder::open(path).take().values("lm_head.weight").take(), embedding);
  change_tensors(path, [](auto& tensors) { tensors.pop_back(); });
  EXPECT_EQ(HfFolder::open(path).take().values("lm_head.weight").take(), embedding);
  change_json(path / "config.json", [](json& config) { config["tie_word_embeddings"] = false; });
  EXPECT_EQ(refusal(path), path.string() + ": has no tensor lm_head.weight of shape [512, 64]");
}

TEST(HfFolder, ReadsTensorsOfSeveralTypes) {
  const ScratchFolder scratch;
  const auto path = scratch / "model";
  write_tiny(path);
  const std::vector<double> ones(64, 1.0);
  const std::vector<uint16_t> halves(64, 0x3c00);
  change_tensors(path, [&](auto& tensors) {
    for (auto& tensor : tensors) {
      if (tensor.name == "model.norm.weight") {
        tensor.dtype = Dtype::kF64;
        tensor.bytes = std::as_bytes(std::span(ones));
      } else if (tensor.name == "model.layers.1.input_layernorm.weight") {
        tensor.dtype = Dtype::kF16;
        tensor.bytes = std::as_bytes(std::span(halves));
      }
    }
  });
  const auto folder = HfFolder::open(path).take();
  EXPECT_EQ(folder.values("model.norm.weight").take(), std::vector<float>(64, 1.0F));
  EXPECT_EQ(folder.values("model.layers.1.input_layernorm.weight").take(), std::vector<float>(64, 1.0F));
}

TEST(HfFolder, NamesATensorWithANonFiniteValue) {
  const ScratchFolder scratch;
  const auto path = scratch / "model";
  write_tiny(path);
  std::vector<float> broken(64, 1.0F);
  broken[5] = NAN;
  change_tensors(path, [&](auto& tensors) {
    for (auto& tensor : tensors) {
      if (tensor.name == "model.norm.weight") tensor.bytes = std::as_bytes(std::span(broken));
    }
  });
  EXPECT_EQ(HfFolder::open(path).take().values("model.norm.weight").error().message,
            (path / "model.safetensors").string() + ": tensor model.norm.weight: value 5 is not a finite float");
}

TEST(HfFolder, RefusesTensorsThatDoNotBelongToAPlainLlama) {
  const ScratchFolder scratch;
  const auto path = scratch / "model";
  const std::vector<float> zeros(64 * 64);
  const auto refusal_after = [&](const std::function<void(std::vector<SafetensorsTensor>&)>& change) {
    fs::remove_all(path);
    write_tiny(path);
    change_tensors(path, change);
    return refusal(path);
  };
  const auto refusal_with = [&](const std::string& name, Dtype dtype = Dtype::kF32) {
    return refusal_after([&](auto& tensors) {
      const std::vector<int64_t> shape{64};
      tensors.push_back({name, dtype, shape, std::as_bytes(std::span(zeros)).first(*tensor_bytes(dtype, shape))});
    });
  };
  EXPECT_EQ(refusal_with("model.layers.0.self_attn.rotary_emb.inv_freq"), "taken");
  EXPECT_EQ(refusal_with("model.layers.0.self_attn.q_proj.bias"),
            "model.safetensors: has a tensor \"model.layers.0.self_attn.q_proj.bias\"; biases are not supported");
  EXPECT_EQ(refusal_with("model.layers.3.input_layernorm.weight"),
            "model.safetensors: has a tensor \"model.layers.3.input_layernorm.weight\"; a plain LLaMA has none");
  EXPECT_EQ(refusal_after([](auto& tensors) { tensors.erase(tensors.begin() + 2); }),
            path.string() + ": has no tensor model.layers.0.self_attn.q_proj.weight of shape [64, 64]");
  EXPECT_EQ(refusal_after([](auto& tensors) {
              tensors[3].shape = {64, 32};
            }),
            "model.safetensors: tensor model.layers.0.self_attn.k_proj.weight has the shape [64, 32], needs [32, 64] "
            "by config.json");
  EXPECT_EQ(refusal_after([](auto& tensors) { tensors[3].dtype = Dtype::kI32; }),
            "model.safetensors: tensor model.layers.0.self_attn.k_proj.weight is of I32, needs F64, F32, F16 or BF16");
}

TEST(HfFolder, RefusesIncompleteFolders) {
  const ScratchFolder scratch;
  const auto path = scratch / "model";
  EXPECT_EQ(refusal(path),
            path.string() + " is not a folder; needs one with a config.json, safetensors and tokenizer.model");
  write_tiny(path);
  fs::rename(path / "model.safetensors", path / "pytorch_model.bin");
  EXPECT_EQ(
      refusal(path),
      path.string() +
          " has neither model.safetensors nor model.safetensors.index.json; other weight formats are not supported");
  fs::rename(path / "pytorch_model.bin", path / "model.safetensors");
  fs::resize_file(path / "model.safetensors", fs::file_size(path / "model.safetensors") - 4);
  EXPECT_TRUE(refusal(path).starts_with("model.safetensors: not a valid safetensors file: ")) << refusal(path);
  fs::remove(path / "config.json");
  EXPECT_EQ(refusal(path), "cannot read config.json: No such file or directory");
}

TEST(HfFolder, ReadsOnlySentencepiecesTokenizer) {
  const ScratchFolder scratch;
  const auto path = scratch / "model";
  write_tiny(path);
  fs::rename(path / "tokenizer.model", path / "tokenizer.json");
  const auto folder = HfFolder::open(path).take();
  EXPECT_EQ(
      folder.tokenizer().error().message,
      path.string() + " has no tokenizer.model; only sentencepiece's tokenizers are supported, not tokenizer.json");
  write(path / "tokenizer.model", "nothing");
  EXPECT_EQ(folder.tokenizer().error().message,
            (path / "tokenizer.model").string() +
                ": not a complete sentencepiece model: needs a .model file, as written by `thinpipe tokenizer train`");
  write(path / "tokenizer.model", test::made_up_tokenizer(513).model());
  EXPECT_EQ(folder.tokenizer().error().message,
            (path / "tokenizer.model").string() + ": has 513 pieces, but vocab_size is 512");
  write(path / "tokenizer.model", test::made_up_tokenizer(500).model());
  EXPECT_EQ(folder.tokenizer().take().vocab(), 500);
}

class HfIndex : public testing::Test {
 protected:
  HfIndex() { write_tiny(path_, {.max_shard_bytes = kSmallShards}); }

  std::string refusal_after(const std::function<void(json&)>& change) {
    const std::string good = read(index_);
    change_json(index_, change);
    const auto text = refusal(path_);
    write(index_, good);
    return text;
  }

  const ScratchFolder scratch_;
  const fs::path path_ = scratch_ / "model";
  const fs::path index_ = path_ / "model.safetensors.index.json";
};

TEST_F(HfIndex, IsRefusedWhenItDisagreesWithTheFiles) {
  const auto norm = "model.norm.weight";
  EXPECT_EQ(
      refusal_after([&](json& index) { index["weight_map"].erase(norm); }),
      "model-00004-of-00005.safetensors: contains tensor \"model.norm.weight\", which model.safetensors.index.json "
      "does not list there");
  EXPECT_EQ(
      refusal_after([&](json& index) { index["weight_map"][norm] = "model-00001-of-00005.safetensors"; }),
      "model-00004-of-00005.safetensors: contains tensor \"model.norm.weight\", which model.safetensors.index.json "
      "does not list there");
  EXPECT_EQ(refusal_after([](json& index) { index["weight_map"]["x"] = "model-00001-of-00005.safetensors"; }),
            "model-00001-of-00005.safetensors: has no tensor \"x\", but model.safetensors.index.json lists it there");
  EXPECT_EQ(refusal_after([](json& index) { index["weight_map"]["x"] = "other.safetensors"; }),
            "cannot read other.safetensors: No such file or directory");
  EXPECT_EQ(refusal_after([](json& index) { index["metadata"] = 3; }), "taken");
  fs::remove(path_ / "model-00002-of-00005.safetensors");
  EXPECT_EQ(refusal(path_), "cannot read model-00002-of-00005.safetensors: No such file or directory");
}

TEST_F(HfIndex, IsRefusedWhenAFileNameIsNotPlain) {
  for (const std::string name :
       {"../model.safetensors", "/etc/passwd.safetensors", "a/b.safetensors", ".safetensors", ".hidden.safetensors",
        "pytorch_model.bin", "", "a\\b.safetensors", "a b.safetensors", "a\nb.safetensors"}) {
    EXPECT_EQ(refusal_after([&](json& index) { index["weight_map"]["x"] = name; }),
              "model.safetensors.index.json: \"x\" is in " + json(name).dump() +
                  ", needs a plain file name that ends in .safetensors");
  }
  EXPECT_EQ(refusal_after([](json& index) { index["weight_map"]["x"] = 3; }),
            "model.safetensors.index.json: \"x\" is in 3, needs a plain file name that ends in .safetensors");
  EXPECT_EQ(refusal_after([](json& index) {
              for (int i = 0; i < 10'001; ++i)
                index["weight_map"][std::to_string(i)] = std::to_string(i) + ".safetensors";
            }),
            "model.safetensors.index.json: names 10006 files, needs at most 10000");
}

TEST_F(HfIndex, SurvivesEveryCutAndManyFlips) {
  const std::string good = read(index_);
  EXPECT_EQ(refusal_after([](json& index) { index.erase("weight_map"); }),
            "model.safetensors.index.json: has no weight_map, needs an object of tensor names and file names");
  EXPECT_EQ(refusal_after([](json& index) { index = json::array(); }),
            "model.safetensors.index.json: has no weight_map, needs an object of tensor names and file names");
  EXPECT_EQ(parse_hf_index(std::string((4 << 20) + 1, ' '), "i.json").error().message,
            "i.json: has 4194305 bytes, needs at most 4194304");
  for (size_t length = 0; length + 2 < good.size(); ++length) {
    EXPECT_EQ(parse_hf_index(good.substr(0, length), "i.json").error().message, "i.json: is not valid JSON") << length;
  }
  const size_t map_begins = good.find("weight_map");
  for (size_t at = 0; at < good.size(); at += 13) {
    std::string changed = good;
    changed[at] = static_cast<char>(changed[at] ^ 1 << at % 7);
    write(index_, changed);
    const auto text = refusal(path_);
    // The total size before it and white space may change unnoticed; no letter of a name may.
    if (at >= map_begins && std::isalnum(static_cast<unsigned char>(good[at])) != 0) {
      EXPECT_NE(text, "taken") << at;
    }
  }
}

TEST(HfFolderWriting, RefusesAnExistingPath) {
  const ScratchFolder scratch;
  const auto refusal_at = [&](const fs::path& path) {
    return write_hf_folder(path, kTinyLlama, tiny_tokenizer(), tiny_llama(kTinyLlama)).error().message;
  };
  EXPECT_EQ(refusal_at(""), "the path is empty");
  write(scratch / "file", "mine");
  EXPECT_EQ(refusal_at(scratch / "file"),
            (scratch / "file").string() + " exists and is not an empty folder: remove it or give another path");
  fs::create_directory(scratch / "full");
  write(scratch / "full" / "thesis.txt", "mine");
  EXPECT_EQ(refusal_at(scratch / "full"),
            (scratch / "full").string() + " exists and is not an empty folder: remove it or give another path");
  EXPECT_EQ(read(scratch / "full" / "thesis.txt"), "mine");
  EXPECT_EQ(scratch.file_count(), 2U);
  fs::create_directory(scratch / "empty");
  write_tiny(fs::path((scratch / "empty").string() + "/"));
  EXPECT_EQ(refusal(scratch / "empty"), "taken");
  write_tiny(scratch / "new" / "below" / "model");
  EXPECT_EQ(refusal(scratch / "new" / "below" / "model"), "taken");
}

TEST(HfFolderWriting, RefusesModelsThatCannotBeWritten) {
  const ScratchFolder scratch;
  const auto refusal_of = [&](const LlamaShape& shape, const LlamaValues& values, Dtype dtype = Dtype::kF32) {
    const auto status = write_hf_folder(scratch / "model", shape, tiny_tokenizer(), values, {.dtype = dtype});
    EXPECT_EQ(scratch.file_count(), 0U);
    return status.ok() ? "written" : status.error().message;
  };
  LlamaShape shape = kTinyLlama;
  shape.heads = 5;
  EXPECT_EQ(refusal_of(shape, tiny_llama(shape)),
            "the model: hidden_size 64 cannot be divided into 5 heads of an even width");
  shape = kTinyLlama;
  shape.vocab = 511;
  EXPECT_EQ(refusal_of(shape, tiny_llama(shape)), "the tokenizer has 512 pieces, but the model has only 511 tokens");
  const auto good = tiny_llama(kTinyLlama);
  const LlamaValues too_large = [&](const std::string& name) {
    auto values = good(name);
    if (name == "model.layers.1.mlp.up_proj.weight") values.value()[17] = -1e6F;
    return values;
  };
  EXPECT_EQ(refusal_of(kTinyLlama, too_large, Dtype::kF16),
            "tensor model.layers.1.mlp.up_proj.weight: value 17 is -1000000, which F16 (at most 65504) cannot hold");
  const LlamaValues broken = [&](const std::string& name) -> Result<std::vector<float>> {
    if (name == "lm_head.weight") return Error{"stage-1.safetensors: damaged"};
    return good(name);
  };
  EXPECT_EQ(refusal_of(kTinyLlama, broken), "stage-1.safetensors: damaged");
}

TEST(HfFolderWriting, LeavesNothingIfTheDiskFails) {
  LlamaShape shape = kTinyLlama;
  shape.blocks = 1;
  const auto write_to = [&](const fs::path& path) {
    return write_hf_folder(path, shape, tiny_tokenizer(), tiny_llama(shape), {.max_shard_bytes = kSmallShards});
  };
  size_t operations = 0;
  {
    const ScratchFolder scratch;
    test::FaultyFileSystem counting;
    const ScopedFileSystem scoped(counting);
    ASSERT_TRUE(write_to(scratch / "model").ok());
    operations = counting.operations().size();
  }
  ASSERT_GT(operations, 30U);
  for (const auto fault : {test::Fault::kIoError, test::Fault::kNoSpace, test::Fault::kShortWrite}) {
    for (size_t at = 1; at <= operations; at += fault == test::Fault::kIoError ? 1 : 3) {
      const ScratchFolder scratch;
      test::FaultyFileSystem faulty(fault, at);
      const ScopedFileSystem scoped(faulty);
      const auto status = write_to(scratch / "model");
      const auto where = fmt::format("{} at operation {} of {}", name_of(fault), at, operations);
      // The last operation syncs the folder's name: by then it is complete.
      if (status.ok() || at == operations) {
        EXPECT_EQ(refusal(scratch / "model"), "taken") << where;
      } else {
        EXPECT_EQ(scratch.file_count(), 0U) << where << ": " << status.error().message;
      }
    }
  }
}

TEST(HfFolderWriting, LeavesNothingOnAFullDisk) {
  const test::SmallDisk disk(600'000);
  if (!disk.mounted()) GTEST_SKIP() << disk.why_not();
  const auto status = write_hf_folder(disk.folder() / "model", kTinyLlama, tiny_tokenizer(), tiny_llama(kTinyLlama));
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("No space left on device"), std::string::npos) << status.error().message;
  EXPECT_EQ(disk.folder().file_count(), 0U);
}

}  // namespace
}  // namespace thinpipe
