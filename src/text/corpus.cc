#include "text/corpus.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/bytes.h"
#include "text/kjv.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

// The string "text" of a JSON object. Everything else is dropped while parsing, so it costs no memory.
std::optional<std::string> text_field(const std::string& line) {
  using Json = nlohmann::json;
  const auto keep = [](int depth, Json::parse_event_t event, const Json& parsed) {
    return depth != 1 || event != Json::parse_event_t::key || parsed == "text";
  };
  Json object = Json::parse(line, keep, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::nullopt;
  const auto text = object.find("text");
  if (text == object.end() || !text->is_string()) return std::nullopt;
  return std::move(text->get_ref<std::string&>());
}

}  // namespace

size_t cut_limit(size_t target) {
  // Four bytes hold any character, so even the smallest target makes progress without splitting one.
  return std::max<size_t>(2 * target, 4);
}

size_t cut_length(std::string_view text, size_t target) {
  TP_CHECK(!text.empty() && target > 0, "nothing to cut: {} bytes, target {}", text.size(), target);
  const size_t limit = cut_limit(target);
  const size_t line_end = text.substr(0, limit).find('\n', target - 1);
  if (line_end != std::string_view::npos) return line_end + 1;
  if (text.size() <= limit) return text.size();
  size_t cut = limit;
  const auto is_continuation = [&](size_t index) { return (static_cast<uint8_t>(text[index]) & 0xC0) == 0x80; };
  while (limit - cut < 3 && is_continuation(cut)) --cut;
  return is_continuation(cut) ? limit : cut;
}

struct DocumentReader::State {
  std::vector<Corpus::File> files;
  DocumentSizes sizes;
  size_t file_index = 0;
  TextForm form;
  bool by_config = true;
  std::unique_ptr<TextInput> input;  // of files[file_index], once opened
  std::string rest;                  // read but not handed out; the file's next document begins with it
  uint64_t invalid_count = 0;        // in the files before this one

  void open();
  // Each fills `document` from the open file, or returns false at its end.
  Result<bool> next_text(std::string& document);
  Result<bool> next_jsonl(std::string& document);
  Result<bool> next_chapter(std::string& document);
  Result<bool> next_in_file(std::string& document);
};

void DocumentReader::State::open() {
  const auto& file = files[file_index];
  const bool is_ours = file.kind == Corpus::Kind::kChapters;
  input = std::make_unique<TextInput>(file.path, is_ours ? TextForm{} : form, by_config);
}

Result<bool> DocumentReader::State::next_text(std::string& document) {
  // One byte more than the limit shows whether the text ends there.
  const size_t wanted = cut_limit(sizes.text_bytes) + 1;
  while (rest.size() < wanted) {
    const std::string_view bytes = TRY(input->peek());
    if (bytes.empty()) break;
    const std::string_view part = bytes.substr(0, wanted - rest.size());
    rest += part;
    input->consume(part.size());
  }
  if (rest.empty()) return false;
  const size_t length = cut_length(rest, sizes.text_bytes);
  document.assign(rest, 0, length);
  rest.erase(0, length);
  TRY(input->check_utf8(document));
  input->passed(document);
  return true;
}

Result<bool> DocumentReader::State::next_jsonl(std::string& document) {
  std::string line;
  while (rest.empty()) {
    const bool more = TRY(input->next_line(line));
    if (!more) return false;
    TRY(input->check_utf8(line));
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      auto text = text_field(line);
      if (!text) return input->fault(0, "not a JSON object with a string \"text\"");
      rest = std::move(*text);
    }
    input->passed(line);
    input->passed("\n");
  }
  const size_t length = cut_length(rest, sizes.jsonl_bytes);
  document.assign(rest, 0, length);
  rest.erase(0, length);
  return true;
}

Result<bool> DocumentReader::State::next_chapter(std::string& document) {
  std::string line;
  document.clear();
  while (true) {
    const bool more = TRY(input->next_line(line));
    if (!more) return !document.empty();
    TRY(input->check_utf8(line));
    input->passed(line);
    input->passed("\n");
    if (line.empty() && !document.empty()) return true;
    if (!line.empty()) document += line + '\n';
  }
}

Result<bool> DocumentReader::State::next_in_file(std::string& document) {
  switch (files[file_index].kind) {
    case Corpus::Kind::kText:
      return next_text(document);
    case Corpus::Kind::kJsonl:
      return next_jsonl(document);
    case Corpus::Kind::kChapters:
      return next_chapter(document);
  }
  TP_CHECK(false, "unknown kind of corpus file");
}

DocumentReader::DocumentReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
DocumentReader::~DocumentReader() = default;
DocumentReader::DocumentReader(DocumentReader&&) noexcept = default;

Result<bool> DocumentReader::next(std::string& document) {
  while (state_->file_index < state_->files.size()) {
    if (!state_->input) state_->open();
    auto found = state_->next_in_file(document);
    if (found && found.value()) return true;
    state_->invalid_count += state_->input->invalid_count();
    state_->input.reset();
    state_->rest.clear();
    state_->file_index = found ? state_->file_index + 1 : state_->files.size();
    if (!found) return found;
  }
  return false;
}

uint64_t DocumentReader::invalid_count() const {
  return state_->invalid_count + (state_->input ? state_->input->invalid_count() : 0);
}

Corpus::Kind Corpus::kind_of(const fs::path& path) { return path.extension() == ".jsonl" ? Kind::kJsonl : Kind::kText; }

std::vector<Corpus::File> Corpus::list_folder(const fs::path& folder, std::string_view named) {
  std::vector<std::string> names;
  std::error_code code;
  fs::recursive_directory_iterator entry(folder, code);
  // Linked folders are not entered: a link to a parent would loop.
  for (; !code && entry != fs::recursive_directory_iterator(); entry.increment(code)) {
    if (entry->path().filename().string().starts_with('.')) {
      entry.disable_recursion_pending();
    } else if (std::error_code ignored; entry->is_regular_file(ignored)) {
      names.push_back(entry->path().lexically_relative(folder).generic_string());
    } else if (!entry->is_directory(ignored)) {
      throw UserError(fmt::format("{}: {} is {}; take it away, or give the files one by one", named,
                                  entry->path().string(),
                                  entry->is_symlink(ignored) ? "a link to nothing that can be read" : "not a file"));
    }
  }
  if (code) throw UserError(fmt::format("{}: cannot read folder {}: {}", named, folder.string(), code.message()));
  std::sort(names.begin(), names.end());
  std::vector<File> files;
  files.reserve(names.size());
  for (const auto& name : names) files.push_back({folder / name, kind_of(name)});
  return files;
}

Corpus Corpus::open(const DataConfig& data) { return open(data.corpus, "data.corpus", {data.encoding, data.invalid}); }

Corpus Corpus::open(const std::string& source, std::string_view named, TextForm form) {
  Corpus corpus;
  corpus.form_ = form;
  corpus.by_config_ = named == "data.corpus";
  corpus.source_ = source;
  if (source == "kjv") {
    corpus.files_.push_back({kjv_file(), Kind::kChapters});
    return corpus;
  }
  const fs::path path(source);
  std::error_code code;
  const auto status = fs::status(path, code);
  const auto kinds = R"(give "kjv", a text or .jsonl file, or a folder of them)";
  if (code) throw UserError(fmt::format("{} = \"{}\": {}; {}", named, source, code.message(), kinds));
  if (fs::is_directory(status)) {
    corpus.files_ = list_folder(path, named);
    if (corpus.files_.empty()) {
      throw UserError(fmt::format(
          "{}: folder {} has no files: needs text or .jsonl files, not hidden, in it or below it", named, source));
    }
  } else if (fs::is_regular_file(status)) {
    corpus.files_.push_back({path, kind_of(path)});
  } else {
    throw UserError(fmt::format("{} = \"{}\" is neither a file nor a folder: {}", named, source, kinds));
  }
  return corpus;
}

DocumentReader Corpus::read(DocumentSizes sizes) const {
  auto state = std::make_unique<DocumentReader::State>();
  state->files = files_;
  state->form = form_;
  state->by_config = by_config_;
  state->sizes = sizes;
  return DocumentReader(std::move(state));
}

void ContentHash::add(std::string_view document) {
  const auto length = le_bytes<uint64_t>(document.size());
  hash_.update({length.data(), length.size()});
  hash_.update(document);
}

}  // namespace thinpipe
