// When a block reads its stream through the anchor table (METHOD 1b): one rule for the model, which chooses by it, and
// the memory plan, which must know what will be chosen.
#pragma once

namespace thinpipe {

// The table's extra passes over memory cost about as much as this share of its products.
constexpr double kTableOverhead = 1.25;

// Of a microbatch of `rows` tokens, the number of distinct ones from which on the direct form is cheaper. In
// multiplications per output column, u distinct tokens cost rows k + u d by the table and rows d directly.
constexpr double distinct_where_direct_is_cheaper(double rows, double d, double k) {
  return rows * (1 / kTableOverhead - k / d);
}

}  // namespace thinpipe
