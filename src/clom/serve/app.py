"""The routes of the HTTP API.

Tested by tests/serve/answers/test_answers.py.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import numpy as np
import torch
from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from clom.errors import UserError
from clom.ood.rejection import FALSE_REJECTION
from clom.serve import schemas
from clom.serve.answers.engine import NothingLearned
from clom.serve.images.decoder_pool import Unreadable
from clom.serve.images.uploads import decode_all, pictures_to_ask
from clom.serve.lesson_requests import begin_lesson
from clom.serve.lessons.runner import Busy, NoSuchJob
from clom.serve.metrics import Counting
from clom.serve.model_changes import add_changes
from clom.serve.security import Guard
from clom.serve.service import Service
from clom.serve.sessions import add_sessions, may_see
from clom.serve.web.pages import add_pages

_STATUS = {Busy: 409, NothingLearned: 409, NoSuchJob: 404}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": schemas.Problem, "description": "Rejected, with the reason."}
}
StopAtHints = Annotated[bool, Query(description="Wait for a decision if something is noticed about the pictures.")]
_bearer = HTTPBearer(auto_error=False, description="The token that the server was started with, if any.")


def make_app(service: Service) -> FastAPI:
    """The application for a service."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="CLOM",
        summary="Classify pictures and learn new classes; earlier tasks stay bit-identical.",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses=_PROBLEMS,
    )
    _add_errors(app)
    add_pages(app, service)
    add_sessions(app, service)
    _add_answers(app, service)
    _add_lessons(app, service)
    app.add_middleware(Counting, metrics=service.metrics)
    app.add_middleware(Guard, access=service.access, bodies=service.bodies)
    return app


def _add_errors(app: FastAPI) -> None:
    """All errors have the same JSON form."""

    @app.exception_handler(HTTPException)
    async def refused(_: Request, problem: HTTPException) -> Response:
        return JSONResponse({"error": str(problem.detail)}, problem.status_code, problem.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, problem: RequestValidationError) -> Response:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return JSONResponse({"error": f"{where}: {first['msg']}"}, 422)

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, __: ClientDisconnect) -> Response:
        return JSONResponse({"error": "The connection was closed before the request was complete."}, 400)

    @app.exception_handler(UserError)
    async def mistaken(_: Request, problem: UserError) -> Response:
        return JSONResponse({"error": str(problem)}, _STATUS.get(type(problem), 422))


def _add_answers(app: FastAPI, service: Service) -> None:
    @app.get("/health", response_model=schemas.Health, response_model_exclude_unset=True, summary="Health check")
    async def health(request: Request) -> dict[str, Any]:
        if not may_see(service.access, request):
            return {"status": "ok"}
        active = service.engine.active
        tasks = len(active.task_names)
        return {"status": "ok", "model": active.version, "tasks": tasks, "teaching": service.lessons.teaching}

    @app.get("/metrics", response_class=PlainTextResponse, summary="Metrics in Prometheus format")
    async def metrics() -> str:
        active, job = service.engine.active, service.lessons.current
        return service.metrics.text(
            {
                "clom_tasks": ("Tasks learned.", len(active.task_names)),
                "clom_classes": ("Classes learned.", len(active.task_of_class)),
                "clom_teaching": ("1 during training.", service.lessons.teaching),
                "clom_lesson_progress": ("Progress of the latest job, from 0 to 1.", job.share if job else 0.0),
            }
        )

    @app.get("/model", response_model=schemas.ModelOut, summary="The model, its tasks and classes")
    async def model() -> Response:
        return JSONResponse(service.about())

    @app.get("/model/inspection", summary="Fingerprint checks, and the AUC between tasks")
    async def inspection() -> dict[str, Any]:
        return await service.inspection()

    @app.post("/predict", response_model=schemas.Answers, openapi_extra=schemas.ASK_BODY, summary="Classify pictures")
    async def predict(
        request: Request,
        task: Annotated[str | None, Query(description="Restrict the prediction to the classes of this task.")] = None,
        top: Annotated[int, Query(ge=1, le=1000, description="Number of most likely classes to return.")] = 3,
        false_rejection: Annotated[
            float,
            Query(ge=0, lt=1, description="Fraction of pictures of known classes that may be rejected as unknown."),
        ] = FALSE_REJECTION,
    ) -> Response:
        started = time.perf_counter()
        uploads = await pictures_to_ask(request, service.limits)
        found = await decode_all(uploads, service.decoders, service.engine.active.size, service.limits)
        await request.close()  # deletes the temporary files of the uploads
        squares = [photo.square for photo in found if not isinstance(photo, Unreadable)]
        if not squares:
            bad = [file for file in found if isinstance(file, Unreadable)]
            text = bad[0].reason if len(bad) == 1 else f"none of {len(bad)} files is a picture that can be read"
            return JSONResponse({"error": text, "unreadable": [vars(file) for file in bad]}, 422)
        replies = await service.engine.ask(torch.from_numpy(np.stack(squares)), task, top, false_rejection)
        answers = iter(replies.answers)
        shown: list[dict[str, Any]] = []
        for upload, decoded in zip(uploads, found, strict=True):
            if isinstance(decoded, Unreadable):
                shown.append({"file": upload.name, "error": decoded.reason})
            else:
                answer = next(answers)
                service.metrics.answers["unknown" if answer.unknown else "known"] += 1
                shown.append({"file": upload.name, **answer.to_json()})
        service.metrics.seconds.observe(time.perf_counter() - started)
        question = {"task": task, "false_rejection": false_rejection}
        return JSONResponse({"model": replies.version, **question, "answers": shown})


def _add_lessons(app: FastAPI, service: Service) -> None:
    lessons = service.lessons

    def may_teach(request: Request, _: Annotated[Any, Depends(_bearer)]) -> None:
        """Reject before the body is read."""
        access = service.access
        if not access.teaching:
            reason = "it was started read-only" if access.read_only else "beyond this machine it needs a token"
            raise HTTPException(403, f"This server does not learn: {reason}.")
        if not access.knows(request.headers.get("authorization")):
            raise HTTPException(401, "Teaching needs the right token.", {"WWW-Authenticate": "Bearer"})

    allowed = [Depends(may_teach)]

    @app.post(
        "/tasks",
        status_code=202,
        dependencies=allowed,
        response_model=schemas.JobOut,
        openapi_extra=schemas.TEACH_BODY,
        summary="Teach new classes",
    )
    async def teach(request: Request, stop_at_hints: StopAtHints = False) -> Response:
        return await begin_lesson(service, request, stop_at_hints=stop_at_hints)

    @app.post(
        "/pictures",
        status_code=202,
        dependencies=allowed,
        response_model=schemas.JobOut,
        openapi_extra=schemas.ADD_BODY,
        summary="Add pictures to known classes, for instance to correct wrong answers",
    )
    async def add(request: Request, stop_at_hints: StopAtHints = False) -> Response:
        return await begin_lesson(service, request, adds=True, stop_at_hints=stop_at_hints)

    add_changes(app, service, allowed)

    @app.get("/jobs", response_model=schemas.JobList, summary="Training jobs, the latest first")
    async def all_jobs() -> dict[str, Any]:
        return {"jobs": [job.to_json() for job in reversed(lessons.all)]}

    @app.get("/jobs/{number}", response_model=schemas.JobOut, summary="Progress of a job")
    async def one_job(number: str) -> dict[str, Any]:
        return lessons.get(number).to_json()

    @app.get(
        "/jobs/{number}/events",
        summary="Progress of a job as server-sent events, until it ends",
        response_class=StreamingResponse,
        responses={
            200: {
                "content": {"text/event-stream": {}},
                "description": "Server-sent events, each with the state of the job.",
            }
        },
    )
    async def events(number: str) -> Response:
        job = lessons.get(number)
        if service.streams.locked():
            raise HTTPException(503, "Too many clients follow this lesson. Ask for its state now and then instead.")

        async def lines() -> AsyncIterator[str]:
            async with service.streams:
                async for state in lessons.changes(job):
                    yield ": still there\n\n" if state is None else f"event: job\ndata: {json.dumps(state)}\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")

    @app.post(
        "/jobs/{number}/resume",
        status_code=202,
        dependencies=allowed,
        response_model=schemas.JobOut,
        summary="Resume an interrupted job",
    )
    async def resume(number: str) -> dict[str, Any]:
        job = lessons.get(number)
        await lessons.resume(job)
        return job.to_json()

    @app.delete(
        "/jobs/{number}",
        dependencies=allowed,
        response_model=schemas.JobOut,
        summary="Cancel a job; the model stays unchanged",
    )
    async def cancel(number: str) -> dict[str, Any]:
        job = lessons.get(number)
        await lessons.cancel(job)
        return job.to_json()
