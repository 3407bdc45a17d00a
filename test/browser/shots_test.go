//go:build linux

package browser

import (
	"bytes"
	"flag"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// What TestScreenshots writes: a picture of each page, and two of them for the documents.
var (
	shots  = flag.String("shots", "", "directory that gets a picture of each page, light and dark")
	images = flag.String("images", "", "directory of the documents' images, which gets two of them")
)

// documented are the pictures of the documents, by page and scheme; each has less than maxImage.
var documented = map[string]string{"/sessions/repair light": "web-session.png", "/fleet dark": "web-fleet.png"}

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
				small := reduced(t, picture, 256)
				require.Less(t, len(small), maxImage, to)
				require.NoError(t, os.WriteFile(filepath.Join(*images, to), small, 0o644)) //nolint:gosec // as all documents
			}
		}
	}
	tb.harmless()
}

// reduced is a picture with its most frequent colours, the others replaced by the nearest one.
func reduced(t *testing.T, picture []byte, colours int) []byte {
	t.Helper()
	from, err := png.Decode(bytes.NewReader(picture))
	require.NoError(t, err)
	counts := map[color.RGBA]int{}
	for y := range from.Bounds().Dy() {
		for x := range from.Bounds().Dx() {
			counts[color.RGBAModel.Convert(from.At(x, y)).(color.RGBA)]++ //nolint:forcetypeassert // it converts to this
		}
	}
	all := make([]color.RGBA, 0, len(counts))
	for c := range counts {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b color.RGBA) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return slices.Compare([]byte{a.R, a.G, a.B}, []byte{b.R, b.G, b.B})
	})
	palette := make(color.Palette, 0, colours)
	for _, c := range all[:min(len(all), colours)] {
		palette = append(palette, c)
	}
	to := image.NewPaletted(from.Bounds(), palette)
	draw.Draw(to, to.Bounds(), from, image.Point{}, draw.Src)
	var out bytes.Buffer
	require.NoError(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to))
	return out.Bytes()
}
