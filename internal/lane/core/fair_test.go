package core_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/core"
)

// Law: tenants that wait get slots in proportion to their weights, within a tenth over a thousand
// grants, and none of them starves.
func TestFair_SharesAreTheWeights(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		weights := map[string]float64{}
		total := 0.0
		for _, name := range []string{"a", "b", "c", "d"}[:2+rng.IntN(3)] {
			weights[name] = float64(1 + rng.IntN(5))
			total += weights[name]
		}
		f := core.Fair[string]{Weight: func(t string) float64 { return weights[t] }}
		for range rng.IntN(500) { // a tenant alone gains no credit and loses none
			f.Grant("a")
		}
		got, last := map[string]int{}, map[string]int{}
		for n := range 1000 {
			first := ""
			for _, name := range sortedKeys(weights) {
				if first == "" || f.Before(name, first) {
					first = name
				}
			}
			f.Grant(first)
			got[first]++
			require.LessOrEqual(t, n-last[first], int(2*total)+2, "seed %d: %s starves", seed, first)
			last[first] = n
		}
		for name, weight := range weights {
			want := 1000 * weight / total
			require.InDelta(t, want, got[name], want/10+1, "seed %d: %s of %v", seed, name, weights)
		}
	}
}
