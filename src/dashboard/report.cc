#include "dashboard/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/files.h"
#include "base/plot.h"
#include "base/result.h"
#include "base/say.h"
#include "base/units.h"
#include "dashboard/run_view.h"
#include "run/samples.h"

namespace thinpipe {
namespace {

using Json = nlohmann::json;

constexpr int64_t kReportPoints = 600;

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { overflow: auto; padding: .8rem; border: 1px solid #8886; border-radius: 6px; }
svg { max-width: 100%; height: auto; }
)css";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  }
  return out;
}

std::string shown(const Json& value, const char* format) {
  return value.is_number() && std::isfinite(value.get<double>())
             ? fmt::format(fmt::runtime(format), value.get<double>())
             : std::string("unknown");
}

Series series_of(const char* name, const Json& steps, const Json& values) {
  Series series{name, {}};
  for (size_t i = 0; i < steps.size(); ++i) {
    if (values[i].is_number() && std::isfinite(values[i].get<double>()))
      series.points.emplace_back(steps[i], values[i]);
  }
  return series;
}

void add_plot(std::vector<Plot>& plots, Plot plot) {
  std::erase_if(plot.series, [](const Series& series) { return series.points.empty(); });
  if (!plot.series.empty()) plots.push_back(std::move(plot));
}

std::string curves(const Json& steps) {
  const auto& x = steps["step"];
  std::vector<Plot> plots;
  add_plot(plots, {"loss",
                   "step",
                   "nats per token",
                   {series_of("training", x, steps["loss"]),
                    series_of("validation", steps["validation"]["step"], steps["validation"]["loss"])}});
  add_plot(plots, {"speed", "step", "tokens/s", {series_of("tokens/s", x, steps["tokens_per_s"])}});
  add_plot(plots, {"norm of the gradient", "step", "before clipping", {series_of("norm", x, steps["grad_norm"])}});
  add_plot(plots,
           {"traffic", "step", "bytes per token and cut", {series_of("both ways", x, steps["bytes_per_token"])}});
  const auto& basis = steps["basis"];
  add_plot(plots, {"the subspace",
                   "step",
                   "share",
                   {series_of("energy inside", basis["step"], basis["energy_inside"]),
                    series_of("dropped", basis["step"], basis["dropped_share"])}});
  return plots.empty() ? "<p>No step was committed.</p>" : to_svg(plots);
}

struct StageTimes {
  double total = 0, forward = 0, backward = 0, update = 0, wait = 0;
};

// Every line of timing.jsonl.
template <class Take>
void each_timing(const std::filesystem::path& folder, const Take& take) {
  LineReader reader(folder / "timing.jsonl");
  for (auto news = reader.read(); !news.lines.empty(); news = reader.read()) {
    for (const auto& line : news.lines) {
      const auto json = Json::parse(line, nullptr, false);
      if (json.is_object() && json.contains("stages") && json["stages"].is_array()) take(json);
    }
  }
}

std::string where_time_went(const std::filesystem::path& folder) {
  std::vector<StageTimes> stages;
  each_timing(folder, [&](const Json& line) {
    const auto& all = line["stages"];
    stages.resize(std::max(stages.size(), all.size()));
    for (size_t i = 0; i < all.size(); ++i) {
      stages[i].total += all[i].value("total_s", 0.0);
      stages[i].forward += all[i].value("forward_s", 0.0);
      stages[i].backward += all[i].value("backward_s", 0.0);
      stages[i].update += all[i].value("update_s", 0.0);
      stages[i].wait += all[i].value("wait_s", 0.0);
    }
  });
  if (stages.empty()) return "<p>No step was timed.</p>";
  std::string rows;
  for (size_t i = 0; i < stages.size(); ++i) {
    const auto& one = stages[i];
    const double whole = one.total + one.update;
    const auto share = [&](double part) {
      return fmt::format("<td class=n>{:.1f} s</td><td class=n>{:.0f} %</td>", part,
                         whole > 0 ? 100 * part / whole : 0);
    };
    rows += fmt::format("<tr><td>stage {}</td>{}{}{}{}{}</tr>", i, share(one.forward), share(one.backward),
                        share(one.update), share(one.wait),
                        share(std::max(0.0, one.total - one.forward - one.backward - one.wait)));
  }
  return "<table><tr><th></th><th class=n colspan=2>forward</th><th class=n colspan=2>backward</th>"
         "<th class=n colspan=2>update</th><th class=n colspan=2>waiting</th>"
         "<th class=n colspan=2>packing, sending, the rest</th></tr>" +
         rows + "</table>";
}

std::string event_table(const Json& events) {
  if (events.empty()) return "<p>None are known.</p>";
  std::string rows;
  for (const auto& event : events) {
    rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>", escaped(event["time"]), escaped(event["kind"]),
                        escaped(event["text"]));
  }
  return "<table>" + rows + "</table>";
}

std::string sample_table(const std::filesystem::path& run_folder) {
  std::string rows;
  for (const auto& sample : read_samples(run_folder)) {
    rows += fmt::format("<tr><td>step {}</td><td>{}</td></tr>", sample.step, escaped(sample.text));
  }
  return rows.empty() ? "<p>There are none.</p>" : "<table>" + rows + "</table>";
}

}  // namespace

std::string run_report(const std::filesystem::path& run_folder) {
  RunView view(run_folder);
  while (view.refresh()) {
  }
  const auto run = view.run();
  const auto now = view.status();
  const auto row = [](const char* name, const std::string& value) {
    return fmt::format("<tr><th>{}</th><td>{}</td></tr>", name, escaped(value));
  };
  const auto whole = [](const Json& value) { return value.get<int64_t>(); };
  std::string facts;
  facts += row("state", now["why"].get<std::string>().empty()
                            ? now["state"].get<std::string>()
                            : fmt::format("{}: {}", now["state"].get<std::string>(), now["why"].get<std::string>()));
  facts += row("steps", fmt::format("{} of {}, {} tokens each", whole(now["step"]), whole(now["steps"]),
                                    whole(run["tokens_per_step"])));
  facts += row("model", fmt::format("{}, d = {}, {} blocks in {}", run["model"].get<std::string>(), whole(run["d"]),
                                    whole(run["blocks"]), counted(whole(run["stages"]), "stage")));
  facts += row("corpus", run["corpus"]);
  facts += row("training loss", shown(now["loss"], "{:.4f} nats per token"));
  facts += row("validation loss", shown(now["validation_loss"], "{:.4f} nats per token"));
  facts += row("speed", shown(now["tokens_per_s"], "{:.0f} tokens/s in the last steps"));
  facts +=
      row("traffic", fmt::format("{}, {} below fp32", shown(now["bytes_per_token"], "{:.1f} bytes per token and cut"),
                                 shown(now["compression"], "{:.1f}x")));
  const auto name = escaped(run["name"]);
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<title>{0}</title><style>{1}</style></head><body>\n<h1>{0}</h1>\n<table>{2}</table>\n"
      "<h2>Curves</h2>\n{3}\n<h2>What it wrote</h2>\n{7}\n<h2>Where the time went</h2>\n{4}\n<h2>Events</h2>\n{5}\n"
      "<h2>Config</h2>\n<pre>{6}</pre>\n</body></html>\n",
      name, kStyle, facts, curves(view.steps(0, int64_t{1} << 40, kReportPoints)), where_time_went(run_folder),
      event_table(view.events(0)), escaped(run["config"]), sample_table(run_folder));
}

std::string run_trace(const std::filesystem::path& run_folder) {
  std::string text;
  const auto add = [&](const Json& event) { text += (text.empty() ? "" : ",\n") + event.dump(); };
  const auto slice = [&](const std::string& name, size_t stage, double begin_s, double seconds, const Json& facts) {
    add({{"name", name},
         {"ph", "X"},
         {"pid", 1},
         {"tid", stage},
         {"ts", 1e6 * begin_s},
         {"dur", 1e6 * seconds},
         {"args", facts}});
  };
  size_t stages = 0;
  each_timing(run_folder, [&](const Json& line) {
    const auto& all = line["stages"];
    for (; stages < all.size(); ++stages) {
      add({{"name", "thread_name"},
           {"ph", "M"},
           {"pid", 1},
           {"tid", stages},
           {"args", {{"name", fmt::format("stage {}", stages)}}}});
    }
    // The stages begin a step together, and its commit ends it. That is all the coordinator knows of their clocks.
    double longest = 0;
    for (const auto& stage : all) longest = std::max(longest, stage.value("total_s", 0.0));
    const double begin_s = line.value("seconds", 0.0) - longest;
    for (size_t i = 0; i < all.size(); ++i) {
      const auto& stage = all[i];
      auto facts = stage;
      facts.erase("passes");
      slice(fmt::format("step {}", line.value("step", int64_t{0})), i, begin_s, stage.value("total_s", 0.0), facts);
      if (!stage.contains("passes") || !stage["passes"].is_array()) continue;
      for (const auto& pass : stage["passes"]) {
        if (!pass.is_array() || pass.size() != 4 || !pass[2].is_number() || !pass[3].is_number()) continue;
        slice(fmt::format("{} {}", pass[0] == "b" ? "backward" : "forward", pass[1].dump()), i,
              begin_s + pass[2].get<double>(), pass[3].get<double>() - pass[2].get<double>(), Json::object());
      }
    }
  });
  if (text.empty()) throw UserError(fmt::format("{}: has no timed step yet", run_folder.string()));
  return "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" + text + "\n]}\n";
}

}  // namespace thinpipe
