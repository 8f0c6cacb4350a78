// The smallest cluster: a run of two stages, held by workers a and b.
#pragma once

#include <vector>

#include "simulated_run.h"

namespace thinpipe::test {

struct Pair : SimulatedRun {
  explicit Pair(const RunRules& rules) : SimulatedRun(rules) {
    add("a");
    add("b");
  }
  SimulatedWorker& a() { return worker("a"); }
  SimulatedWorker& b() { return worker("b"); }
  // The last Form sent to each.
  std::vector<control::Form> last_forms() const {
    const auto all_forms = forms();
    return {all_forms.end() - 2, all_forms.end()};
  }
};

inline RunRules saving_rules() {
  auto rules = small_rules();
  rules.config.checkpoint.every = 2;
  return rules;
}

}  // namespace thinpipe::test
