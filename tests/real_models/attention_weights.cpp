// Attention weights and residual stream of llama.cpp: attention_weights MODEL.gguf OUT TOKEN ...
// OUT gets of each layer the weights, then the stream after it: 4 numbers of 64 bits (sizes, the last axis first) and
// float32 [head][query][key], and [position][hidden].
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"

static bool seen(ggml_tensor* tensor, bool ask, void* out) {
  const bool wanted = !std::strncmp(tensor->name, "kq_soft_max", 11) || !std::strncmp(tensor->name, "l_out", 5);
  if (ask || !wanted) return wanted || !ask;
  std::vector<char> values(ggml_nbytes(tensor));
  ggml_backend_tensor_get(tensor, values.data(), 0, values.size());
  auto& file = *static_cast<std::ofstream*>(out);
  file.write(reinterpret_cast<const char*>(tensor->ne), sizeof tensor->ne);
  file.write(values.data(), values.size());
  return true;
}

int main(int count, char** given) {
  llama_backend_init();
  auto* model = llama_model_load_from_file(given[1], llama_model_default_params());
  std::ofstream out(given[2], std::ios::binary);
  std::vector<llama_token> tokens;
  for (int i = 3; i < count; ++i) tokens.push_back(std::atoi(given[i]));
  auto options = llama_context_default_params();
  options.n_ctx = options.n_batch = options.n_ubatch = 512;
  options.n_threads = options.n_threads_batch = 1;
  options.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  options.type_k = options.type_v = GGML_TYPE_F32;
  options.cb_eval = seen;
  options.cb_eval_user_data = &out;
  auto* context = model ? llama_init_from_model(model, options) : nullptr;
  return !context || llama_decode(context, llama_batch_get_one(tokens.data(), tokens.size()));
}
