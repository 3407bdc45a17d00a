//go:build linux

package browser

import (
	"bytes"
	"cmp"
	"flag"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// What TestScreenshots writes: a picture of each page, and some of them for the documents.
var (
	shots  = flag.String("shots", "", "directory that gets a picture of each page, light and dark")
	images = flag.String("images", "", "directory of the documents' images, which gets some of them")
)

// documented are the pictures of the documents, by page and scheme; each has less than maxImage.
var documented = map[string]string{
	"/sessions/repair light": "web-session.png", "/fleet dark": "web-fleet.png",
	"/sessions/repair/timeline light": "web-timeline.png", "/sessions light": "web-sessions.png", "/limits light": "web-limits.png",
}

const maxImage = 150 << 10

// TestScreenshots draws each page of a fleet with lively content: a failing test that was repaired,
// an approval that waits, lanes that wait, a tenant at its limit, and a worker that was lost.
func TestScreenshots(t *testing.T) {
	if *shots == "" {
		t.Skip("make screenshots draws them")
	}
	require.NoError(t, os.MkdirAll(*shots, 0o755))
	s := newScene(t)
	s.lively()
	s.outcomes("parcel")
	s.loses("w-2", "render")
	tb := s.tab(t)
	tb.opens("/waits", "git push")
	for _, page := range listed(t) {
		if page.who != "operator" || page.status != "200" {
			continue
		}
		path := page.path
		for _, scheme := range []string{"light", "dark"} {
			tb.looks(scheme, 1280, 860)
			tb.open(s.at(path))
			tb.sees(page.text)
			tb.until(`document.fonts.status === "loaded"`, "fonts are there")
			picture, err := chromedp.Run(tb.ctx, chromedp.CaptureScreenshot())
			require.NoError(t, err)
			name := strings.Trim(strings.NewReplacer("/", "-", "?", "-", "=", "-", "&", "-", "{", "", "}", "", "*", "all").Replace(path), "-") + "-" + scheme + ".png"
			require.NoError(t, os.WriteFile(filepath.Join(*shots, name), picture, 0o600))
			if to := documented[path+" "+scheme]; to != "" && *images != "" {
				small := reduced(t, picture)
				require.Less(t, len(small), maxImage, to)
				require.NoError(t, os.WriteFile(filepath.Join(*images, to), small, 0o644)) //nolint:gosec // as all documents
			}
		}
	}
	tb.harmless()
}

// reduced is a picture with 256 colours: the most frequent one of each kind of colour, of the most
// frequent kinds. All others are replaced by the nearest one.
func reduced(t *testing.T, picture []byte) []byte {
	t.Helper()
	from, err := png.Decode(bytes.NewReader(picture))
	require.NoError(t, err)
	counts := map[color.RGBA]int{}
	for y := range from.Bounds().Dy() {
		for x := range from.Bounds().Dx() {
			counts[color.RGBAModel.Convert(from.At(x, y)).(color.RGBA)]++ //nolint:forcetypeassert // it converts to this
		}
	}
	all := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), slices.Compare([]byte{a.R, a.G, a.B}, []byte{b.R, b.G, b.B}))
	})
	palette, kinds := color.Palette{}, map[[3]byte]bool{}
	for _, c := range all {
		kind := [3]byte{c.R >> 4, c.G >> 4, c.B >> 4}
		if counts[c] < 200 && kinds[kind] || len(palette) == 256 {
			continue
		}
		kinds[kind] = true
		palette = append(palette, c)
	}
	to := image.NewPaletted(from.Bounds(), palette)
	draw.Draw(to, to.Bounds(), from, image.Point{}, draw.Src)
	var out bytes.Buffer
	require.NoError(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to))
	return out.Bytes()
}
