"""Routes that change what the model knows without a lesson: other names, merged and forgotten classes, undo.

Each is done in a thread while the old model goes on answering; the file is replaced atomically.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import Body, FastAPI
from fastapi.params import Depends

from clom.photos.changes.merge import merge_classes
from clom.photos.changes.rename import rename_class, rename_task
from clom.photos.forget import forget
from clom.photos.previous import undo
from clom.serve import schemas
from clom.serve.service import Service

NewName = Annotated[str, Body(embed=True, max_length=1000, description="The new name.")]


def add_changes(app: FastAPI, service: Service, allowed: Sequence[Depends]) -> None:
    """Add the routes, which only those who are `allowed` may use."""
    changing = asyncio.Lock()
    options: dict[str, Any] = {"dependencies": allowed, "response_model": schemas.Changed}

    async def change(work: Callable[[], str]) -> dict[str, str]:
        """Do it when nothing is being learned, and load the new model."""
        async with changing:
            service.lessons.check_free()
            said = await asyncio.to_thread(work)
            await service.engine.refresh()
        return {"model": service.engine.active.version, "said": said}

    @app.patch("/tasks/{name:path}", summary="Rename a task", **options)
    async def task_renamed(name: str, new_name: NewName) -> dict[str, str]:
        return await change(lambda: f"The task '{name}' is now '{rename_task(service.path, name, new_name)}'.")

    @app.delete("/tasks/{name:path}", summary="Forget a task; the others stay bit-identical", **options)
    async def task_forgotten(name: str) -> dict[str, str]:
        def work() -> str:
            gone = forget(service.path, name)
            return f"Forgot '{gone.task}': {', '.join(gone.class_names)}. {gone.stays}".strip()

        return await change(work)

    @app.patch("/classes/{name:path}", summary="Rename a class", **options)
    async def class_renamed(name: str, new_name: NewName) -> dict[str, str]:
        return await change(lambda: f"The class '{name}' is now '{rename_class(service.path, name, new_name)}'.")

    @app.post("/merge", summary="Take two classes for one: the first is answered as the second", **options)
    async def merged(
        name: Annotated[str, Body(max_length=1000)], into: Annotated[str, Body(max_length=1000)]
    ) -> dict[str, str]:
        return await change(lambda: f"'{name}' is now answered as '{merge_classes(service.path, name, into)}'.")

    @app.post("/undo", summary="Take back the last change of the model, except forgetting", **options)
    async def undone() -> dict[str, str]:
        def work() -> str:
            found = undo(service.path)
            gone = f" Gone: {', '.join(found.removed)}." if found.removed else ""
            return f"The model is as it was before its last change.{gone}"

        return await change(work)
