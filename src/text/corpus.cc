#include "text/corpus.h"

#include <algorithm>

#include "base/bytes.h"
#include "text/decompression.h"
#include "text/json_line.h"
#include "text/kjv.h"
#include "text/not_text.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kBlank = " \t\r";

// Whether the line looks like the first one of a JSON document that covers several.
bool begins_json(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
  line = line.substr(0, line.find_last_not_of(kBlank) + 1);
  return line.starts_with('[') || line == "{";
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
  uint64_t invalid_count = 0;        // in the files before this one, and in JSON escapes

  void open();
  // Each fills `document` from the open file, or returns false at its end.
  Result<bool> next_text(std::string& document);
  Result<bool> next_jsonl(std::string& document);
  Result<std::string> document_in(const std::string& line);
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
    if (line.find_first_not_of(kBlank) != std::string::npos) rest = TRY(document_in(line));
    input->passed(line);
    input->passed("\n");
  }
  const size_t length = cut_length(rest, sizes.jsonl_bytes);
  document.assign(rest, 0, length);
  rest.erase(0, length);
  return true;
}

Result<std::string> DocumentReader::State::document_in(const std::string& line) {
  std::string mended;
  if (const auto at = find_half_escape(line)) {
    if (form.invalid == Invalid::kRefuse) {
      const auto what = fmt::format("the escape {} is half a character{}", line.substr(*at, kEscapeBytes),
                                    input->hint("data.invalid = \"replace\" or \"skip\"", "take it out"));
      return input->fault(*at, what, line);
    }
    mended = line;
    invalid_count += replace_half_escapes(mended, form.invalid == Invalid::kReplace ? "\\ufffd" : "");
  }
  auto found = read_json_line(mended.empty() ? line : mended, form.field);
  if (found.document) return std::move(*found.document);
  std::string what = found.fault;
  if (found.wrong_field) {
    what += input->hint("data.field to the one that holds the text", "rename the one that holds the text");
  } else if (begins_json(line)) {
    what += "; if the file is one JSON document, make lines of it: " + json_conversion(files[file_index].path);
  }
  return input->fault(std::min(found.fault_at, line.size()), what, line);
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

Corpus::Kind Corpus::kind_of(const fs::path& path) {
  return plain_name(path).extension() == ".jsonl" ? Kind::kJsonl : Kind::kText;
}

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

Corpus Corpus::open(const DataConfig& data) {
  return open(data.corpus, "data.corpus", {data.encoding, data.invalid, data.field});
}

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
