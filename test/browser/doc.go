// Package browser has the tests of the console in a real browser: tasks of people from the first
// click to the result, what JavaScript adds to the pages, accessibility, and that no page makes the
// browser report an error.
//
// The tests need Chromium (Debian: apt-get install chromium), and skip without it unless
// BELFRY_BROWSER=required. BELFRY_SCREENSHOTS=1 writes docs/images/console-*.png.
package browser
