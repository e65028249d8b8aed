# Every target does its own set-up.
PLUGINS_DIST := plugins/dist

.PHONY: plugins
plugins: ## The shipped policies as WebAssembly components in $(PLUGINS_DIST)
	@PLUGINS_DIST=$(CURDIR)/$(PLUGINS_DIST) plugins/setup.sh
