// The experiments behind `thinpipe lab NAME`. Each prints a small table and, with `json`, one JSON object on the last
// line.
#pragma once

namespace thinpipe {

// Compares the cut model with the uncut reference, and shows the error of other packs.
void lab_exactness(bool json);
// Does W stay in the subspace? Runs 200 steps of the literal optimizer and checks each one.
void lab_optimizer(bool json);

// Trains the default config and its dense counterpart in this process for this many minutes each (0.05 to 10000, else
// UserError), and prints both losses.
void lab_default(double minutes, bool json);

}  // namespace thinpipe
