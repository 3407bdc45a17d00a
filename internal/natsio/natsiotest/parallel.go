package natsiotest

import (
	"flag"
	"runtime"
	"strconv"
)

// atOnce is how many tests run at once where there are fewer cores.
const atOnce = 4

// Overlap is called by a TestMain whose tests wait more than they compute: on a machine with
// few cores it lets four of those that are marked as parallel run at once, unless -parallel
// says another number.
func Overlap() {
	flag.Parse()
	parallel := flag.Lookup("test.parallel")
	if parallel.Value.String() == parallel.DefValue && runtime.GOMAXPROCS(0) < atOnce {
		_ = flag.Set(parallel.Name, strconv.Itoa(atOnce)) // a number is a valid value
	}
}
