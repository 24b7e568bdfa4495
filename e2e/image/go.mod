module trainyard/e2e/image

go 1.22
