#include "inference/import_llama.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/result.h"
#include "inference/plain_llama.h"
#include "model/subspace_side.h"

namespace thinpipe {
namespace {

std::string output_name(int64_t block, int number) { return fmt::format("blocks.{}.wp{}", block, number); }

class Importer {
 public:
  Importer(const LlamaShape& shape, const LlamaValues& values, const ModelConfig& model)
      : shape_(shape), values_(values), model_(model) {}

  Result<ImportedModel> run() {
    if (auto status = take_blocks(); !status) return status.error();
    if (model_.is_subspace()) {
      if (auto status = project_outputs(); !status) return status.error();
      if (auto status = divide_embedding(); !status) return status.error();
    } else if (auto status = take("embedding"); !status) {
      return status.error();
    }
    for (const char* name : {"final_norm", "head"}) {
      if (auto status = take(name); !status) return status.error();
    }
    return std::move(imported_);
  }

 private:
  Result<at::Tensor> read(const std::string& name) { return dense_parameter(shape_, values_, name); }

  Status take(const std::string& name) {
    auto value = read(name);
    if (!value) return value.error();
    imported_.parameters.emplace_back(name, value.value().contiguous());
    return {};
  }

  // Everything of the blocks but the output projections that are to be projected.
  Status take_blocks() {
    for (int64_t block = 0; block < shape_.blocks; ++block) {
      for (const char* name : {"attn_norm", "wqkv", "mlp_norm", "wgu"}) {
        if (auto status = take(fmt::format("blocks.{}.{}", block, name)); !status) return status;
      }
      for (int number = 1; number <= 2 && block >= model_.first_dense_block(); ++number) {
        if (auto status = take(output_name(block, number)); !status) return status;
      }
    }
    return {};
  }

  // The right singular vectors of all W_p, one below the other, are the eigenvectors of the sum of W_p^T W_p: (d, d)
  // however many matrices there are, and only one of them in memory.
  Status project_outputs() {
    const auto doubles = at::TensorOptions().dtype(at::kDouble);
    auto gram = at::zeros({shape_.d, shape_.d}, doubles);
    auto status = for_each_output([&](int64_t, int, const at::Tensor& w) { gram.addmm_(w.t(), w); });
    if (!status) return status;
    // Ascending eigenvalues: the last k are the largest.
    const auto vectors = std::get<1>(at::linalg_eigh(gram));
    const int64_t k = model_.subspace.rank;
    imported_.basis = vectors.narrow(1, shape_.d - k, k).flip(1).contiguous();
    double all = 0, inside = 0;
    status = for_each_output([&](int64_t block, int number, const at::Tensor& w) {
      const auto a = w.mm(imported_.basis);
      const double own = w.square().sum().item<double>(), kept = a.square().sum().item<double>();
      all += own;
      inside += kept;
      imported_.outputs.push_back({output_name(block, number), own > 0 ? kept / own : 1.0});
      imported_.parameters.emplace_back(fmt::format("blocks.{}.a{}", block, number), a.to(at::kFloat));
    });
    imported_.energy_lost = all > 0 ? 1 - inside / all : 0.0;
    return status;
  }

  template <class Visit>
  Status for_each_output(const Visit& visit) {
    for (int64_t block = 0; block < model_.first_dense_block(); ++block) {
      for (int number = 1; number <= 2; ++number) {
        const auto value = read(output_name(block, number));
        if (!value) return value.error();
        visit(block, number, value.value().to(at::kDouble));
      }
    }
    return {};
  }

  // embedding = T_fixed + E U^T with E = embedding U; exact but for rounding to float32.
  Status divide_embedding() {
    const auto value = read("embedding");
    if (!value) return value.error();
    const auto embedding = value.value().to(at::kDouble);
    const auto e = embedding.mm(imported_.basis).to(at::kFloat);
    imported_.parameters.emplace_back("embedding_coordinates", e);
    // Of E as it was rounded, so that its rounding is made good.
    imported_.table = (embedding - e.to(at::kDouble).mm(imported_.basis.t())).to(at::kFloat);
    if (model_.subspace.anchors == Anchors::kStage) {
      // A group's own table starts as the shared one.
      for (const auto& group : anchor_groups(model_, whole_model(model_))) {
        imported_.parameters.emplace_back(fmt::format("anchors.{}", group.number), imported_.table);
      }
    }
    return {};
  }

  const LlamaShape& shape_;
  const LlamaValues& values_;
  const ModelConfig& model_;
  ImportedModel imported_;
};

}  // namespace

Result<ImportedModel> import_llama(const LlamaShape& shape, const LlamaValues& values, const ModelConfig& model) {
  TP_CHECK(!model.is_subspace() || model.subspace.norm == NormForm::kJoint, "a LLaMA has the joint norm");
  return Importer(shape, values, model).run();
}

}  // namespace thinpipe
