"""The only room that imports vLLM: the engine contract over AsyncLLM, and what runs inside its workers."""
