// The experiments behind `thinpipe lab NAME`: each prints a small table, and with `json` one JSON object on the last
// line.
#pragma once

namespace thinpipe {

// The cut model against the uncut reference, and what other packs cost.
void lab_exactness(bool json);
// 200 steps of the literal optimiser: does W stay in the subspace, at every one?
void lab_optimizer(bool json);

// Trains the default config and its dense counterpart for that many minutes each (0.05 to 10000, else UserError), in
// this process, and prints both losses.
void lab_default(double minutes, bool json);

}  // namespace thinpipe
