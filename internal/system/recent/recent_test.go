package recent_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/internal/system/recent"
)

// TestCache_DropsSingly: at a bound, the value that was used longest ago is dropped, and no other
// one.
func TestCache_DropsSingly(t *testing.T) {
	t.Parallel()
	c := recent.New[string, int](3, 100)
	made := 0
	use := func(key string) int {
		value := c.Make(key, func() int { made++; return made })
		c.Resize(key, value, 10)
		return value
	}
	for i, key := range []string{"a", "b", "c", "a", "d"} {
		require.Equal(t, []int{1, 2, 3, 1, 4}[i], use(key))
	}
	require.Equal(t, 3, c.Len())
	require.Equal(t, 1, use("a"), "it was used since")
	require.Equal(t, 5, use("b"), "it was used longest ago")
	c.Put("e", 6, 85)
	require.Equal(t, 2, c.Len(), "by their sizes")
	require.Equal(t, 5, use("b"))
	c.Put("f", 7, 1000)
	require.Equal(t, 1, c.Len(), "one that is larger than the bound is the only one")
	require.Equal(t, 7, use("f"))
	c.Put("g", 8, 100)
	c.Put("h", 9, 0)
	require.Equal(t, 2, c.Len(), "the size of what was dropped is not counted")
}

// TestCache_ANewValueDropsNone: values that turn out to be nothing do not push out others.
func TestCache_ANewValueDropsNone(t *testing.T) {
	t.Parallel()
	c := recent.New[int, int](3, 0)
	for key := range 3 {
		c.Put(key, key, 0)
	}
	for key := 3; key < 10; key++ {
		c.Drop(key, c.Make(key, func() int { return key }))
	}
	for key := range 3 {
		_, is := c.Get(key)
		require.True(t, is)
	}
}

// TestCache_IsAModel: the cache has what a list in the order of use has. What was dropped or
// replaced meanwhile is neither resized nor dropped by those who have it still.
func TestCache_IsAModel(t *testing.T) {
	t.Parallel()
	type item struct{ key, value, size int }
	rapid.Check(t, func(t *rapid.T) {
		const most, room = 4, 20
		c := recent.New[int, int](most, room)
		var model []item // the one that was used last at the end
		at := func(key int) int {
			return slices.IndexFunc(model, func(i item) bool { return i.key == key })
		}
		fit := func() {
			for sum := func() (n int) {
				for _, i := range model {
					n += i.size
				}
				return n
			}; len(model) > 1 && (len(model) > most || sum() > room); {
				model = model[1:]
			}
		}
		key, value, size := rapid.IntRange(0, 6), rapid.IntRange(0, 2), rapid.IntRange(0, 9)
		use := func(of int) (i item, is bool) {
			if n := at(of); n >= 0 {
				i = model[n]
				model = append(slices.Delete(model, n, n+1), i)
				return i, true
			}
			return item{}, false
		}
		t.Repeat(map[string]func(*rapid.T){
			"get": func(t *rapid.T) {
				of := key.Draw(t, "key")
				got, is := c.Get(of)
				want, has := use(of)
				require.Equal(t, has, is)
				require.Equal(t, want.value, got)
			},
			"make": func(t *rapid.T) {
				of, begun := key.Draw(t, "key"), value.Draw(t, "value")
				want, has := use(of)
				if !has {
					want = item{of, begun, 0}
					model = append(model, want)
				}
				require.Equal(t, want.value, c.Make(of, func() int { return begun }))
			},
			"put": func(t *rapid.T) {
				i := item{key.Draw(t, "key"), value.Draw(t, "value"), size.Draw(t, "size")}
				c.Put(i.key, i.value, i.size)
				if n := at(i.key); n >= 0 {
					model = slices.Delete(model, n, n+1)
				}
				model = append(model, i)
				fit()
			},
			"resize": func(t *rapid.T) {
				i := item{key.Draw(t, "key"), value.Draw(t, "value"), size.Draw(t, "size")}
				c.Resize(i.key, i.value, i.size)
				if n := at(i.key); n >= 0 && model[n].value == i.value {
					model[n].size = i.size
					fit()
				}
			},
			"drop": func(t *rapid.T) {
				of, which := key.Draw(t, "key"), value.Draw(t, "value")
				c.Drop(of, which)
				if n := at(of); n >= 0 && model[n].value == which {
					model = slices.Delete(model, n, n+1)
				}
			},
			"": func(t *rapid.T) { require.Equal(t, len(model), c.Len()) },
		})
		for _, i := range slices.Clone(model) {
			got, is := c.Get(i.key)
			require.True(t, is)
			require.Equal(t, i.value, got)
		}
	})
}
